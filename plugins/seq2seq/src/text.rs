//! Characters to tokens and back.

use cellwright_guest::prelude::*;
use unicode_normalization::char::{canonical_combining_class, compose, decompose_canonical};

/// The characters a model reads, and how it wants them.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    /// Sorted by character: a token is its place in the model's alphabet.
    tokens: Vec<(char, i64)>,
    lowercase: bool,
}

impl Reader {
    /// # Errors
    /// A character twice, or none at all.
    pub(crate) fn new(alphabet: &str, lowercase: bool) -> Result<Self, Refusal> {
        let mut tokens: Vec<(char, i64)> = alphabet.chars().zip(0..).collect();
        tokens.sort_unstable();
        if tokens.is_empty() {
            return Err(Parameters::refusal("alphabet", "holds no characters"));
        }
        match tokens.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(twice) => Err(Parameters::refusal("alphabet", format!("holds '{}' twice", twice[0].0))),
            None => Ok(Self { tokens, lowercase }),
        }
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// The first character that the model does not know, and where it stands.
    pub(crate) fn read(&self, text: &str) -> Result<Vec<i64>, String> {
        let cased = if self.lowercase { text.to_lowercase() } else { text.into() };
        let mut tokens = Vec::with_capacity(cased.len());
        for (position, character) in composed(&cased).into_iter().enumerate() {
            match self.tokens.binary_search_by_key(&character, |(known, _)| *known) {
                Ok(found) => tokens.push(self.tokens[found].1),
                Err(_) => {
                    let code = u32::from(character);
                    return Err(format!(
                        "holds '{character}' (U+{code:04X}) as character {}, which this model does not know",
                        position + 1
                    ));
                }
            }
        }
        Ok(tokens)
    }
}

/// Whether a text certainly has more than so many characters, told without taking it apart: a character has at most four bytes, and no more than four of
/// them are one when they are put together, neither of which a change of case makes more.
pub(crate) fn is_longer_than(text: &str, characters: u32) -> bool {
    text.len() / 16 > characters as usize
}

/// NFC (Unicode Standard Annex 15), so that a letter is read alike however it was typed: taken apart, its marks in canonical order, put together
/// again. The crate's own iterator brings the tables of NFKC along, which are as large as the rest of the plugin.
fn composed(text: &str) -> Vec<char> {
    let mut parts: Vec<(u8, char)> = Vec::with_capacity(text.len());
    for character in text.chars() {
        decompose_canonical(character, |part| parts.push((canonical_combining_class(part), part)));
    }
    for marks in parts.chunk_by_mut(|(before, _), (class, _)| *before > 0 && *class > 0) {
        marks.sort_by_key(|(class, _)| *class);
    }
    let mut whole: Vec<char> = Vec::with_capacity(parts.len());
    // The last character that marks may go into, and the class of the last mark that stayed behind it.
    let (mut starter, mut stayed) = (None, 0);
    for (class, part) in parts {
        let reaches = stayed == 0 || stayed < class;
        match starter.filter(|_| reaches).and_then(|at: usize| Some((at, compose(whole[at], part)?))) {
            Some((at, both)) => whole[at] = both,
            None => {
                if class == 0 {
                    starter = Some(whole.len());
                }
                stayed = class;
                whole.push(part);
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicode_normalization::UnicodeNormalization;

    fn assert_composed(text: &str) {
        assert_eq!(composed(text), text.nfc().collect::<Vec<_>>(), "{text:?}: {text}");
    }

    #[test]
    fn every_character_is_composed_as_the_standard_says() {
        for character in '\0'..=char::MAX {
            let apart: String = character.to_string().nfd().collect();
            assert_composed(&character.to_string());
            assert_composed(&apart);
        }
    }

    #[test]
    fn marks_are_composed_in_whatever_order_they_come() {
        // Letters, marks of several classes, precomposed letters, Hangul in pieces and half-composed, a two-part Indic vowel, and what is none of that.
        let alphabet: Vec<char> =
            "aedạộ\u{301}\u{307}\u{323}\u{327}\u{302}\u{345}ắ\u{1100}\u{1161}\u{11a8}가\u{9c7}\u{9be}\u{9d7}1 \u{34f}\u{212b}"
                .chars()
                .collect();
        let mut state = 7_u64;
        for _ in 0..50_000 {
            let mut random = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                usize::try_from(state >> 40).unwrap()
            };
            let length = random() % 8;
            assert_composed(&(0..length).map(|_| alphabet[random() % alphabet.len()]).collect::<String>());
        }
    }

    #[test]
    fn characters_are_numbered_as_the_alphabet_has_them_and_lowered_if_asked() {
        let reader = Reader::new("zyäa", true).unwrap();
        assert_eq!(reader.read("AZÄ").unwrap(), [3, 0, 2]);
        assert_eq!(reader.read("az!").unwrap_err(), "holds '!' (U+0021) as character 3, which this model does not know");
        assert_eq!(reader.read("ZA\u{308}").unwrap(), [0, 2], "a letter and its mark are one character");
        let vietnamese = Reader::new("ộ", false).unwrap();
        for typed in ["ộ", "o\u{323}\u{302}", "o\u{302}\u{323}", "ô\u{323}", "ọ\u{302}"] {
            assert_eq!(vietnamese.read(typed).unwrap(), [0], "{typed:?}");
        }
        let reader = Reader::new("za", false).unwrap();
        assert_eq!(reader.read("aZ").unwrap_err(), "holds 'Z' (U+005A) as character 2, which this model does not know");
    }

    #[test]
    fn no_text_is_said_to_be_longer_than_it_is() {
        for character in '\0'..=char::MAX {
            // As many bytes for one character as there can be: taken apart, and in whatever case is longest.
            let cases = [character.to_string(), character.to_uppercase().collect(), character.to_lowercase().collect()];
            for apart in cases.map(|text| text.nfd().collect::<String>().repeat(50)) {
                let characters = composed(&apart).len().min(composed(&apart.to_lowercase()).len());
                assert!(!is_longer_than(&apart, u32::try_from(characters).unwrap()), "{character:?}");
            }
        }
        assert!(is_longer_than(&"a".repeat(200), 10));
    }

    #[test]
    fn an_alphabet_holds_each_character_once() {
        assert_eq!(Reader::new("abca", true).unwrap_err().sentence(), "parameter `alphabet` holds 'a' twice");
        assert_eq!(Reader::new("", true).unwrap_err().sentence(), "parameter `alphabet` holds no characters");
    }
}
