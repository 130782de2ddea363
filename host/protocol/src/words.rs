//! JSON as clients write it: `NaN`, `Infinity` and `-Infinity` as bare words, which JSON does not have and Python's `json` writes.
//!
//! A text that has none is read as it is. Only where that fails for its syntax, it is copied with an object in place of each word, because an object is
//! nothing else among numbers.

use serde::de::{Error, IgnoredAny, MapAccess};

use crate::fault::RequestFault;

const WORDS: [(&str, f64); 3] = [("NaN", f64::NAN), ("Infinity", f64::INFINITY), ("-Infinity", f64::NEG_INFINITY)];

/// The number that one of these words means, bare or as a string.
pub(crate) fn number(word: &str) -> Option<f64> {
    WORDS.iter().find(|(known, _)| *known == word).map(|(_, number)| *number)
}

/// Reads JSON that may have such words.
pub(crate) fn read<T>(text: &[u8], read: impl Fn(&[u8]) -> Result<T, RequestFault>) -> Result<T, RequestFault> {
    match read(text) {
        Err(RequestFault::Json(fault)) if fault.is_syntax() => match marked(text) {
            // Positions in the copy are none in the text.
            Some(copy) => read(&copy).map_err(|again| match again {
                RequestFault::Json(again) => {
                    serde_json::Error::custom(again.to_string().split(" at line ").next().unwrap_or_default()).into()
                }
                again => again,
            }),
            None => Err(fault.into()),
        },
        read => read,
    }
}

/// The text with `{"WORD":0}` in place of each word; none if it has no word.
fn marked(text: &[u8]) -> Option<Vec<u8>> {
    let mut copy = Vec::new();
    let (mut kept, mut at, mut in_text) = (0, 0, false);
    while let Some(byte) = text.get(at) {
        let word = match byte {
            b'\\' if in_text => {
                at += 2;
                continue;
            }
            b'"' => {
                in_text = !in_text;
                None
            }
            b'N' | b'I' | b'-' if !in_text => WORDS.iter().find(|(word, _)| text[at..].starts_with(word.as_bytes())),
            _ => None,
        };
        let Some((word, _)) = word else {
            at += 1;
            continue;
        };
        copy.extend_from_slice(&text[kept..at]);
        copy.extend_from_slice(format!("{{\"{word}\":0}}").as_bytes());
        at += word.len();
        kept = at;
    }
    if kept == 0 {
        return None;
    }
    copy.extend_from_slice(&text[kept..]);
    Some(copy)
}

/// The number that an object stands for; none if it is another object.
pub(crate) fn of_object<'de, A: MapAccess<'de>>(mut object: A) -> Result<Option<f64>, A::Error> {
    let (mut found, mut fields) = (None, 0_usize);
    while let Some((key, IgnoredAny)) = object.next_entry::<String, IgnoredAny>()? {
        found = number(&key);
        fields += 1;
    }
    Ok(found.filter(|_| fields == 1))
}
