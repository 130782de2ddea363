//! What a compiler's process says to the host that started it: machine code, or what is wrong with the plugin.
//!
//! One tag byte, then the code, or texts of a length and that many bytes each. The reader trusts none of it.

use crate::error::Defect;
use crate::sentence;

const CODE: u8 = 0;
const INVALID: u8 = 1;
const FOREIGN_IMPORT: u8 = 2;
const UNKNOWN_VERSION: u8 = 3;
const INTERFACE: u8 = 4;
const UNCOMPILABLE: u8 = 5;

pub(super) fn encode(answer: Result<Vec<u8>, Defect>) -> Vec<u8> {
    let (tag, texts) = match answer {
        Ok(mut code) => {
            code.insert(0, CODE);
            return code;
        }
        Err(Defect::Invalid(text)) => (INVALID, vec![text]),
        Err(Defect::ForeignImport(text)) => (FOREIGN_IMPORT, vec![text]),
        Err(Defect::UnknownVersion { spoken, served }) => (UNKNOWN_VERSION, vec![spoken, served]),
        Err(Defect::Interface(text)) => (INTERFACE, vec![text]),
        Err(Defect::Uncompilable(text)) => (UNCOMPILABLE, vec![text]),
    };
    let mut bytes = vec![tag];
    for text in texts {
        let text = sentence::of(&text);
        bytes.extend_from_slice(&u32::try_from(text.len()).unwrap_or(0).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

/// None where the bytes are no answer at all.
pub(super) fn decode(mut bytes: Vec<u8>) -> Option<Result<Vec<u8>, Defect>> {
    let tag = *bytes.first()?;
    if tag == CODE {
        bytes.drain(..1);
        return Some(Ok(bytes));
    }
    let mut rest = bytes.get(1..)?;
    let mut text = || {
        let (length, tail) = rest.split_first_chunk::<4>()?;
        let (text, tail) = tail.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
        rest = tail;
        Some(sentence::of(std::str::from_utf8(text).ok()?))
    };
    Some(Err(match tag {
        INVALID => Defect::Invalid(text()?),
        FOREIGN_IMPORT => Defect::ForeignImport(text()?),
        UNKNOWN_VERSION => Defect::UnknownVersion { spoken: text()?, served: text()? },
        INTERFACE => Defect::Interface(text()?),
        UNCOMPILABLE => Defect::Uncompilable(text()?),
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_survives_the_way_through_the_pipe() {
        let text = || "a sentence".to_owned();
        for answer in [
            Ok(vec![0, 1, 2, 255]),
            Err(Defect::Invalid(text())),
            Err(Defect::ForeignImport(text())),
            Err(Defect::UnknownVersion { spoken: "9".to_owned(), served: text() }),
            Err(Defect::Interface(text())),
            Err(Defect::Uncompilable(text())),
        ] {
            assert_eq!(decode(encode(answer.clone())), Some(answer));
        }
    }

    #[test]
    fn what_is_no_answer_is_told_apart() {
        for bytes in [&[][..], &[9], &[1], &[1, 200, 0, 0, 0, b'x'], &[1, 1, 0, 0, 0, 0xff]] {
            assert_eq!(decode(bytes.to_vec()), None, "{bytes:?}");
        }
    }
}
