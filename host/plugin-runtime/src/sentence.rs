//! Foreign words (of the compiler, a guest, the system) made fit for one sentence: one line, bounded, nothing that a terminal obeys.

const CHARACTERS_MAX: usize = 600;

/// One line of at most some hundred characters.
pub(crate) fn of(text: &str) -> String {
    let mut sentence = String::new();
    for word in text.split(|character: char| character.is_whitespace() || character.is_control()).filter(|word| !word.is_empty()) {
        if !sentence.is_empty() {
            sentence.push(' ');
        }
        sentence.push_str(word);
        if sentence.len() > CHARACTERS_MAX {
            truncate(&mut sentence, CHARACTERS_MAX);
            sentence.push('…');
            break;
        }
    }
    sentence
}

/// An error and its causes.
pub(crate) fn of_chain(error: &impl std::fmt::Display) -> String {
    of(&format!("{error:#}"))
}

/// Cuts at a character's boundary, at or below `bytes_max`.
pub(crate) fn truncate(text: &mut String, bytes_max: usize) {
    text.truncate(text.floor_char_boundary(bytes_max));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_words_become_one_bounded_line() {
        assert_eq!(of(" two\n  lines\t\x1b[31m\0 "), "two lines [31m");
        assert!(of(&"wörter ".repeat(1000)).chars().count() <= CHARACTERS_MAX + 1);
        assert!(of(&"ö".repeat(10_000)).len() <= CHARACTERS_MAX + 3);
    }
}
