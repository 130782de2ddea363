//! Characters to tokens and back.

use cellwright_guest::prelude::*;
use unicode_normalization::char::compose;

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
        let characters = composed(if self.lowercase { text.to_lowercase() } else { text.into() });
        let mut tokens = Vec::with_capacity(characters.len());
        for (position, character) in characters.into_iter().enumerate() {
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

/// Letters and the marks behind them as one character where there is one: NFC of text whose marks stand in canonical order, as keyboards and
/// file systems write them. All of NFC would be more than the rest of the plugin.
fn composed(text: String) -> Vec<char> {
    let mut characters: Vec<char> = Vec::with_capacity(text.len());
    for character in text.chars() {
        match characters.last_mut() {
            Some(last) if !character.is_ascii() => match compose(*last, character) {
                Some(both) => *last = both,
                None => characters.push(character),
            },
            _ => characters.push(character),
        }
    }
    characters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_numbered_as_the_alphabet_has_them_and_lowered_if_asked() {
        let reader = Reader::new("zyäa", true).unwrap();
        assert_eq!(reader.read("AZÄ").unwrap(), [3, 0, 2]);
        assert_eq!(reader.read("az!").unwrap_err(), "holds '!' (U+0021) as character 3, which this model does not know");
        assert_eq!(reader.read("ZA\u{308}").unwrap(), [0, 2], "a letter and its mark are one character");
        let reader = Reader::new("za", false).unwrap();
        assert_eq!(reader.read("aZ").unwrap_err(), "holds 'Z' (U+005A) as character 2, which this model does not know");
    }

    #[test]
    fn an_alphabet_holds_each_character_once() {
        assert_eq!(Reader::new("abca", true).unwrap_err().sentence(), "parameter `alphabet` holds 'a' twice");
        assert_eq!(Reader::new("", true).unwrap_err().sentence(), "parameter `alphabet` holds no characters");
    }
}
