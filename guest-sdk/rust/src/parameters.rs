//! The parameters of `model.toml`, read with errors that a model's author can act on.
//!
//! Every key a plugin asks for counts as known; a key that it never asked for is refused by naming the known ones, so that a misspelt
//! parameter never passes silently.

use std::cell::RefCell;

use crate::abi::cellwright::plugin::types::{Parameter, Refusal, Value};

/// The parameters a plugin is described with.
#[derive(Debug, Default)]
pub struct Parameters {
    given: Vec<Parameter>,
    asked: RefCell<Vec<String>>,
}

impl Parameters {
    /// Wraps what the host hands to `describe`.
    #[must_use]
    pub fn new(given: Vec<Parameter>) -> Self {
        Self { given, asked: RefCell::default() }
    }

    /// The value of a parameter, if it is given.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        let mut asked = self.asked.borrow_mut();
        if !asked.iter().any(|known| known == name) {
            asked.push(name.into());
        }
        self.given.iter().find(|parameter| parameter.name == name).map(|parameter| &parameter.value)
    }

    /// Whether a parameter is given.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// An integer of at least 1: a size.
    ///
    /// # Errors
    /// Missing, or something else.
    pub fn positive(&self, name: &str) -> Result<u32, Refusal> {
        self.required(name, "a positive integer", positive)
    }

    /// Several of them.
    ///
    /// # Errors
    /// One of them is missing, or something else.
    pub fn sizes<const N: usize>(&self, names: [&str; N]) -> Result<[u32; N], Refusal> {
        let mut sizes = [0; N];
        for (size, name) in sizes.iter_mut().zip(names) {
            *size = self.positive(name)?;
        }
        Ok(sizes)
    }

    /// An integer of at least 1, or the default.
    ///
    /// # Errors
    /// Given, and something else.
    pub fn positive_or(&self, name: &str, default: u32) -> Result<u32, Refusal> {
        Ok(self.optional(name, "a positive integer", positive)?.unwrap_or(default))
    }

    /// An integer of at least 0: an index.
    ///
    /// # Errors
    /// Missing, or something else.
    pub fn index(&self, name: &str) -> Result<u32, Refusal> {
        self.required(name, "an integer from 0 on", index)
    }

    /// A text.
    ///
    /// # Errors
    /// Missing, or something else.
    pub fn text(&self, name: &str) -> Result<&str, Refusal> {
        self.required(name, "a text", text)
    }

    /// A text, or the default.
    ///
    /// # Errors
    /// Given, and something else.
    pub fn text_or<'a>(&'a self, name: &str, default: &'a str) -> Result<&'a str, Refusal> {
        Ok(self.optional_text(name)?.unwrap_or(default))
    }

    /// A text, or none.
    ///
    /// # Errors
    /// Given, and something else.
    pub fn optional_text(&self, name: &str) -> Result<Option<&str>, Refusal> {
        self.optional(name, "a text", text)
    }

    /// A list of texts.
    ///
    /// # Errors
    /// Missing, or something else.
    pub fn texts(&self, name: &str) -> Result<&[String], Refusal> {
        self.required(name, "a list of texts", |value| match value {
            Value::Texts(texts) => Some(&texts[..]),
            _ => None,
        })
    }

    /// True or false, or the default.
    ///
    /// # Errors
    /// Given, and something else.
    pub fn truth_or(&self, name: &str, default: bool) -> Result<bool, Refusal> {
        let truth = |value: &Value| match value {
            Value::Truth(truth) => Some(*truth),
            _ => None,
        };
        Ok(self.optional(name, "true or false", truth)?.unwrap_or(default))
    }

    /// One of several words, each with its meaning.
    ///
    /// # Errors
    /// Missing, or no such word.
    pub fn choice<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<T, Refusal> {
        self.required(name, &one_of(words), |value| chosen(words, value))
    }

    /// One of several words, each with its meaning; the first unless it is given.
    ///
    /// # Errors
    /// Given, and no such word.
    pub fn choice_or_first<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<T, Refusal> {
        Ok(self.optional(name, &one_of(words), |value| chosen(words, value))?.unwrap_or(words[0].1))
    }

    /// A refusal of one parameter's value: "parameter `NAME` SENTENCE".
    #[must_use]
    pub fn refusal(name: &str, sentence: impl std::fmt::Display) -> Refusal {
        Refusal::InvalidInput(format!("parameter `{name}` {sentence}"))
    }

    /// Refuses the first parameter that nobody asked for. `describe` ends with it; no plugin needs to call it.
    ///
    /// # Errors
    /// There is one.
    pub fn refuse_unknown(&self) -> Result<(), Refusal> {
        let asked = self.asked.borrow();
        match self.given.iter().find(|parameter| !asked.contains(&parameter.name)) {
            None => Ok(()),
            Some(_) if asked.is_empty() => Err(Refusal::InvalidInput("this plugin takes no parameters".into())),
            Some(unknown) => Err(Self::refusal(&unknown.name, format!("is unknown or unused here; known are {}", quoted(&asked)))),
        }
    }

    fn required<'a, T>(&'a self, name: &str, wanted: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<T, Refusal> {
        self.optional(name, wanted, read)?.ok_or_else(|| Self::refusal(name, format!("is missing; it must be {wanted}")))
    }

    fn optional<'a, T>(&'a self, name: &str, wanted: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>, Refusal> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(read) => Ok(Some(read)),
                None => Err(Self::refusal(name, format!("must be {wanted}, it is {}", shown(value)))),
            },
        }
    }
}

fn positive(value: &Value) -> Option<u32> {
    index(value).filter(|number| *number > 0)
}

fn index(value: &Value) -> Option<u32> {
    match value {
        Value::Int(number) => u32::try_from(*number).ok(),
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

fn chosen<T: Copy>(words: &[(&str, T)], value: &Value) -> Option<T> {
    let word = text(value)?;
    words.iter().find(|(known, _)| *known == word).map(|(_, meaning)| *meaning)
}

fn one_of<T>(words: &[(&str, T)]) -> String {
    let words: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
    words.join(" or ")
}

fn quoted(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

fn shown(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        // Not its digits: printing floats would be a fifth of a small plugin.
        Value::Float(_) => "a floating-point number".into(),
        Value::Text(text) => format!("\"{text}\""),
        Value::Truth(truth) => truth.to_string(),
        Value::Ints(list) => format!("a list of {} integers", list.len()),
        Value::Floats(list) => format!("a list of {} numbers", list.len()),
        Value::Texts(list) => format!("a list of {} texts", list.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(given: &[(&str, Value)]) -> Parameters {
        Parameters::new(given.iter().map(|(name, value)| Parameter { name: (*name).into(), value: value.clone() }).collect())
    }

    fn sentence<T: std::fmt::Debug>(result: Result<T, Refusal>) -> String {
        match result.unwrap_err() {
            Refusal::InvalidInput(sentence) => sentence,
            other => panic!("wrong kind: {other:?}"),
        }
    }

    #[test]
    fn values_are_read_and_errors_name_the_parameter_what_it_must_be_and_what_it_is() {
        let given = parameters(&[("hidden", Value::Int(64)), ("layers", Value::Int(0)), ("cell", Value::Text("lstn".into()))]);
        assert_eq!(given.positive("hidden").unwrap(), 64);
        assert_eq!(given.positive_or("features", 3).unwrap(), 3);
        assert_eq!(sentence(given.positive("layers")), "parameter `layers` must be a positive integer, it is 0");
        assert_eq!(sentence(given.positive("classes")), "parameter `classes` is missing; it must be a positive integer");
        assert_eq!(sentence(given.text("hidden")), "parameter `hidden` must be a text, it is 64");
        let cells = [("lstm", 0), ("gru", 1)];
        assert_eq!(sentence(given.choice("cell", &cells)), "parameter `cell` must be \"lstm\" or \"gru\", it is \"lstn\"");
        assert_eq!(given.choice_or_first("kind", &cells).unwrap(), 0);
    }

    #[test]
    fn a_parameter_nobody_asked_for_is_refused_by_naming_the_known_ones() {
        let given = parameters(&[("hiden", Value::Int(64))]);
        assert_eq!(sentence(given.refuse_unknown()), "this plugin takes no parameters");
        assert_eq!(given.positive_or("hidden", 1).unwrap(), 1);
        assert!(!given.truth_or("bidirectional", false).unwrap());
        assert_eq!(sentence(given.refuse_unknown()), "parameter `hiden` is unknown or unused here; known are `hidden`, `bidirectional`");
        assert!(given.has("hiden"));
        given.refuse_unknown().unwrap();
    }
}
