//! Characters to tokens and back.

use cellwright_guest::prelude::*;
use unicode_normalization::char::compose;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// The form that texts are brought into (Unicode Standard Annex 15), so that a letter is read alike however it was typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Letters and their marks put together.
    Nfc,
    /// Taken apart.
    Nfd,
    /// Put together, and variants of a character (widths, ligatures) made one.
    Nfkc,
    /// As they come.
    None,
}

impl Form {
    fn apply(self, text: &str) -> String {
        match self {
            Self::Nfc => text.nfc().collect(),
            Self::Nfd => text.nfd().collect(),
            Self::Nfkc => text.nfkc().collect(),
            Self::None => text.into(),
        }
    }

    const fn joins(self) -> bool {
        matches!(self, Self::Nfc | Self::Nfkc)
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Nfc => "nfc",
            Self::Nfd => "nfd",
            Self::Nfkc => "nfkc",
            Self::None => "none",
        }
    }
}

/// The characters a model reads, and how it wants them.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    /// Sorted by character: a token is its place in the model's alphabet.
    tokens: Vec<(char, i64)>,
    form: Form,
    lowercase: bool,
}

impl Reader {
    /// # Errors
    /// A character twice, none at all, or one that no text is read as.
    pub(crate) fn new(alphabet: &str, form: Form, lowercase: bool) -> Result<Self, Refusal> {
        let mut tokens: Vec<(char, i64)> = alphabet.chars().zip(0..).collect();
        tokens.sort_unstable();
        if tokens.is_empty() {
            return Err(Parameters::refusal("alphabet", "holds no characters"));
        }
        if let Some(twice) = tokens.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Parameters::refusal("alphabet", format!("holds '{}' twice", twice[0].0)));
        }
        let reader = Self { tokens, form, lowercase };
        match alphabet.chars().find_map(|character| reader.never_read(character)) {
            None => Ok(reader),
            Some(sentence) => Err(Parameters::refusal("alphabet", sentence)),
        }
    }

    /// How many there are.
    pub(crate) const fn characters(&self) -> usize {
        self.tokens.len()
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// The first character that the model does not know, and where it stands.
    pub(crate) fn read(&self, text: &str) -> Result<Vec<i64>, String> {
        let mut tokens = Vec::with_capacity(text.len());
        for (position, character) in self.normal(text).chars().enumerate() {
            let token = self.token(character);
            tokens.push(
                token.ok_or_else(|| format!("holds {} as character {}, which this model does not know", shown(character), position + 1))?,
            );
        }
        Ok(tokens)
    }

    fn token(&self, character: char) -> Option<i64> {
        self.tokens.binary_search_by_key(&character, |(known, _)| *known).ok().map(|found| self.tokens[found].1)
    }

    /// The text as the model reads it. Brought into the form before too, because the form may make capitals of what has no case.
    fn normal(&self, text: &str) -> String {
        let text = self.form.apply(text);
        if self.lowercase { self.form.apply(&text.to_lowercase()) } else { text }
    }

    /// Why a character of the alphabet is not read from the texts that are meant, if so.
    fn never_read(&self, character: char) -> Option<String> {
        let (form, alone) = (self.form.word(), character.to_string());
        let formed = self.form.apply(&alone);
        if formed != alone {
            let formed = formed.chars().map(shown).collect::<Vec<_>>().join(" ");
            return Some(format!("holds {}, which `normal_form = \"{form}\"` turns into {formed}: {REMEDY}", shown(character)));
        }
        if self.normal(&alone) != alone {
            return Some(format!(
                "holds {}, which `lowercase` never leaves: write it in lower case, or drop `lowercase`",
                shown(character)
            ));
        }
        // A mark, or a part of a Korean syllable, that another character of the alphabet always takes up.
        if !self.form.joins() || is_nfc_quick(std::iter::once(character)) != IsNormalized::Maybe {
            return None;
        }
        let joined = self.tokens.iter().filter_map(|(before, _)| Some((*before, compose(*before, character)?)));
        let (before, joined) = joined.into_iter().find(|(_, joined)| self.token(*joined).is_none())?;
        let (before, character, joined) = (shown(before), shown(character), shown(joined));
        Some(format!("holds {before} and {character}, which `normal_form = \"{form}\"` joins to {joined}, but not that: {REMEDY}"))
    }
}

/// What to do about an alphabet of another form.
const REMEDY: &str = "set `normal_form` to the form of the texts that the model was trained on (\"nfc\", \"nfd\", \"nfkc\" or \"none\")";

/// A mark alone would stand on the quotation mark before it.
fn shown(character: char) -> String {
    format!("'{character}' (U+{:04X})", u32::from(character))
}

/// Whether a text certainly has more than so many characters, told without taking it apart: a character has at most four bytes, and no more than four of
/// them are one when they are put together, neither of which a change of case makes more.
pub(crate) fn is_longer_than(text: &str, characters: u32) -> bool {
    text.len() / 16 > characters as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(alphabet: &str, form: Form, lowercase: bool) -> Reader {
        Reader::new(alphabet, form, lowercase).unwrap()
    }

    fn refused(alphabet: &str, form: Form, lowercase: bool) -> String {
        Reader::new(alphabet, form, lowercase).unwrap_err().sentence().to_owned()
    }

    #[test]
    fn characters_are_numbered_as_the_alphabet_has_them_and_lowered_if_asked() {
        let lower = reader("zyäa", Form::Nfc, true);
        assert_eq!(lower.read("AZÄ").unwrap(), [3, 0, 2]);
        assert_eq!(lower.read("az!").unwrap_err(), "holds '!' (U+0021) as character 3, which this model does not know");
        assert_eq!(lower.read("ZA\u{308}").unwrap(), [0, 2], "a letter and its mark are one character");
        let vietnamese = reader("ộ", Form::Nfc, false);
        for typed in ["ộ", "o\u{323}\u{302}", "o\u{302}\u{323}", "ô\u{323}", "ọ\u{302}"] {
            assert_eq!(vietnamese.read(typed).unwrap(), [0], "{typed:?}");
        }
        let cased = reader("za", Form::Nfc, false);
        assert_eq!(cased.read("aZ").unwrap_err(), "holds 'Z' (U+005A) as character 2, which this model does not know");
    }

    #[test]
    fn texts_are_read_in_the_form_of_the_alphabet() {
        let jamo = reader("\u{1100}\u{1161}\u{11a8}", Form::Nfd, false);
        for typed in ["각", "\u{ac00}\u{11a8}", "\u{1100}\u{1161}\u{11a8}"] {
            assert_eq!(jamo.read(typed).unwrap(), [0, 1, 2], "{typed:?}");
        }
        let accents = reader("oô\u{302}", Form::None, false);
        assert_eq!(accents.read("ôo\u{302}").unwrap(), [1, 0, 2], "as they come");
        let wide = reader("afip", Form::Nfkc, true);
        assert_eq!(wide.read("Ａﬁ").unwrap(), [0, 1, 2]);
        assert_eq!(wide.read("㎩").unwrap(), [3, 0], "a capital that only the form brings");
    }

    #[test]
    fn an_alphabet_of_another_form_is_refused() {
        let cases = [
            (
                "\u{1100}\u{1161}\u{11a8}",
                (Form::Nfc, false),
                "holds '\u{1100}' (U+1100) and '\u{1161}' (U+1161), which `normal_form = \"nfc\"` joins to '가' (U+AC00), but not that: set",
            ),
            ("ae\u{301}", (Form::Nfkc, false), "holds 'a' (U+0061) and '\u{301}' (U+0301), which `normal_form = \"nfkc\"` joins to 'á'"),
            ("é", (Form::Nfd, false), "holds 'é' (U+00E9), which `normal_form = \"nfd\"` turns into 'e' (U+0065) '\u{301}' (U+0301): set"),
            ("\u{212b}", (Form::Nfc, false), "holds '\u{212b}' (U+212B), which `normal_form = \"nfc\"` turns into 'Å' (U+00C5): set"),
            ("ﬁ", (Form::Nfkc, false), "holds 'ﬁ' (U+FB01), which `normal_form = \"nfkc\"` turns into 'f' (U+0066) 'i' (U+0069): set"),
            ("abC", (Form::None, true), "holds 'C' (U+0043), which `lowercase` never leaves: write it in lower case, or drop `lowercase`"),
        ];
        for (alphabet, (form, lowercase), sentence) in cases {
            let refusal = refused(alphabet, form, lowercase);
            assert!(refusal.starts_with(&format!("parameter `alphabet` {sentence}")), "{refusal}");
        }
        // Marks stay where they join with nothing, and where the alphabet has both.
        for alphabet in ["q\u{301}", "aá\u{301}", "\u{1161}"] {
            reader(alphabet, Form::Nfc, false);
        }
        assert_eq!(reader("ae\u{301}", Form::Nfd, false).read("é").unwrap(), [1, 2]);
    }

    #[test]
    fn no_text_is_said_to_be_longer_than_it_is() {
        for character in '\0'..=char::MAX {
            // As many bytes for one character as there can be: taken apart, and in whatever case is longest.
            let cases = [character.to_string(), character.to_uppercase().collect(), character.to_lowercase().collect()];
            for apart in cases.map(|text| text.nfd().collect::<String>().repeat(20)) {
                for lowercase in [false, true] {
                    let reader = Reader { tokens: vec![], form: Form::Nfkc, lowercase };
                    let composed = apart.nfc().count().min(reader.normal(&apart).chars().count());
                    assert!(!is_longer_than(&apart, u32::try_from(composed).unwrap()), "{character:?}");
                }
            }
        }
        assert!(is_longer_than(&"a".repeat(200), 10));
    }

    #[test]
    fn an_alphabet_holds_each_character_once() {
        assert_eq!(refused("abca", Form::Nfc, true), "parameter `alphabet` holds 'a' twice");
        assert_eq!(refused("", Form::Nfc, true), "parameter `alphabet` holds no characters");
    }
}
