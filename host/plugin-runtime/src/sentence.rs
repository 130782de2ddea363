//! Foreign words (of the compiler, a guest, the system) made fit for one sentence: one line, bounded, nothing that a terminal obeys.

use std::fmt::{self, Write};

const CHARACTERS_MAX: usize = 600;

/// A guest's words as one line of at most some hundred characters, of which a terminal obeys none.
#[must_use]
pub fn of(text: &str) -> String {
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

/// A function's name as its author wrote it: compilers of Rust leave theirs mangled.
pub(crate) fn of_function(name: &str) -> String {
    let Ok(demangled) = rustc_demangle::try_demangle(name) else { return of(name) };
    // A mangled name may say the same part many times over, so that what it stands for is not bounded by its own length.
    let mut written = Bounded(String::new());
    let _ = write!(written, "{demangled:#}");
    of(&written.0)
}

/// Text that ends, with an error to its writer, where it is longer than a sentence.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        let room = CHARACTERS_MAX.saturating_sub(self.0.len());
        self.0.push_str(&piece[..piece.floor_char_boundary(room)]);
        if piece.len() > room { Err(fmt::Error) } else { Ok(()) }
    }
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

    #[test]
    fn functions_of_rust_are_named_as_they_were_written() {
        for (mangled, written) in [
            ("_ZN10classifier6unfold17h0123456789abcdefE", "classifier::unfold"),
            ("_RNvNtCs1234_10classifier4step4take", "classifier::step::take"),
            ("_ZN4core6option15Option$LT$T$GT$6unwrap17h0123456789abcdefE.llvm.77", "core::option::Option<T>::unwrap"),
            ("dlmalloc", "dlmalloc"),
            ("_Z3addii", "_Z3addii"),
            ("_ZN\n", "_ZN"),
        ] {
            assert_eq!(of_function(mangled), written);
        }
    }

    #[test]
    fn a_name_that_grows_when_it_is_demangled_is_cut() {
        // Each tuple holds the one before twice, by a reference back to it: 2²⁰ times the first.
        let mut name = "_RIC1a".to_owned();
        let mut previous = "h".to_owned();
        for _ in 0..20 {
            let at = name.len() - "_R".len();
            name.push_str(&format!("T{previous}{previous}E"));
            previous = format!("B{}_", base_62(at));
        }
        name.push('E');
        let long = of_function(&name);
        assert!(long.starts_with("a::<") && long.len() <= CHARACTERS_MAX, "{} {long}", long.len());
    }

    /// A reference's number, as the v0 scheme writes it: one less, in digits, lower and upper case.
    fn base_62(number: usize) -> String {
        let digits: Vec<char> = ('0'..='9').chain('a'..='z').chain('A'..='Z').collect();
        let mut rest = number - 1;
        let mut written = vec![digits[rest % 62]];
        while rest >= 62 {
            rest /= 62;
            written.push(digits[rest % 62]);
        }
        written.iter().rev().collect()
    }
}
