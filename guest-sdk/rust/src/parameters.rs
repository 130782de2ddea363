//! The parameters of `model.toml`, read with errors that a model's author can act on.
//!
//! Every key a plugin asks for counts as known; a key that it never asked for is refused by naming the known ones, the nearest first, so that a
//! misspelt parameter never passes silently.

use std::cell::RefCell;

use crate::abi::cellwright::plugin::types::{Parameter, Refusal, Value};
use crate::nearest::nearest;

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

    /// A float; an integer is one too.
    ///
    /// # Errors
    /// Missing, or something else.
    pub fn float(&self, name: &str) -> Result<f64, Refusal> {
        self.required(name, "a number", float)
    }

    /// A float or an integer, or the default.
    ///
    /// # Errors
    /// Given, and something else.
    pub fn float_or(&self, name: &str, default: f64) -> Result<f64, Refusal> {
        Ok(self.optional(name, "a number", float)?.unwrap_or(default))
    }

    /// A list of floats, or of integers.
    ///
    /// # Errors
    /// Missing, or something else.
    pub fn floats(&self, name: &str) -> Result<Vec<f64>, Refusal> {
        self.required(name, "a list of numbers", |value| match value {
            Value::Floats(floats) => Some(floats.clone()),
            Value::Ints(ints) => Some(ints.iter().map(|int| rounded(*int)).collect()),
            _ => None,
        })
    }

    /// A list of integers.
    ///
    /// # Errors
    /// Missing, or something else.
    pub fn ints(&self, name: &str) -> Result<&[i64], Refusal> {
        self.required(name, "a list of integers", |value| match value {
            Value::Ints(ints) => Some(&ints[..]),
            _ => None,
        })
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

    /// Refuses the first parameter that nobody asked for. `describe` ends with it. A plugin that compares its parameters with weights calls it
    /// before: a misspelt parameter is then named rather than what its default does not fit.
    ///
    /// # Errors
    /// There is one.
    pub fn refuse_unknown(&self) -> Result<(), Refusal> {
        let asked = self.asked.borrow();
        match self.given.iter().find(|parameter| !asked.contains(&parameter.name)) {
            None => Ok(()),
            Some(_) if asked.is_empty() => Err(Refusal::InvalidInput("this plugin takes no parameters".into())),
            Some(unknown) => {
                let near = nearest(&unknown.name, asked.iter().map(|known| &known[..]), 1);
                let near = near.first().map_or_else(String::new, |near| format!("; perhaps `{near}` is meant"));
                Err(Self::refusal(&unknown.name, format!("is unknown or unused here{near}; known are {}", quoted(&asked))))
            }
        }
    }

    fn required<'a, T>(&'a self, name: &str, wanted: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<T, Refusal> {
        self.optional(name, wanted, read)?.ok_or_else(|| {
            let perhaps = self.misspelt(name).map_or_else(String::new, |given| format!("; if `{given}` is meant to be it, rename that"));
            Self::refusal(name, format!("is missing; it must be {wanted}{perhaps}"))
        })
    }

    /// A parameter that is given, that nobody has asked for yet, and whose name is much like that one.
    fn misspelt(&self, name: &str) -> Option<&str> {
        let asked = self.asked.borrow();
        let given = self.given.iter().filter(|parameter| !asked.contains(&parameter.name)).map(|parameter| &parameter.name[..]);
        nearest(name, given, 1).first().copied()
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

fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Float(number) => Some(*number),
        Value::Int(number) => Some(rounded(*number)),
        _ => None,
    }
}

#[expect(clippy::cast_precision_loss, reason = "whoever writes an integer where a float is read means the nearest one")]
const fn rounded(number: i64) -> f64 {
    number as f64
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
    fn numbers_and_lists_are_read_as_what_they_are() {
        let given = parameters(&[
            ("rate", Value::Float(0.5)),
            ("scale", Value::Int(2)),
            ("means", Value::Floats(vec![0.5, -1.0])),
            ("sizes", Value::Ints(vec![3, -4])),
            ("names", Value::Texts(vec!["a".into()])),
        ]);
        assert_eq!([given.float("rate"), given.float("scale"), given.float_or("other", 0.25)], [Ok(0.5), Ok(2.0), Ok(0.25)]);
        assert_eq!([given.floats("means"), given.floats("sizes")], [Ok(vec![0.5, -1.0]), Ok(vec![3.0, -4.0])]);
        assert_eq!((given.ints("sizes").unwrap(), given.texts("names").unwrap()), (&[3, -4][..], &["a".to_owned()][..]));
        assert_eq!(sentence(given.float("sizes")), "parameter `sizes` must be a number, it is a list of 2 integers");
        assert_eq!(sentence(given.ints("means")), "parameter `means` must be a list of integers, it is a list of 2 numbers");
        assert_eq!(sentence(given.floats("names")), "parameter `names` must be a list of numbers, it is a list of 1 texts");
        assert_eq!(sentence(given.ints("rate")), "parameter `rate` must be a list of integers, it is a floating-point number");
    }

    #[test]
    fn a_parameter_that_is_misspelt_is_named_where_the_right_one_is_missing() {
        let given = parameters(&[("num_classes", Value::Int(4)), ("input", Value::Text("x".into()))]);
        assert_eq!(
            sentence(given.positive("classes")),
            "parameter `classes` is missing; it must be a positive integer; if `num_classes` is meant to be it, rename that"
        );
        assert_eq!(given.positive("num_classes").unwrap(), 4);
        let known = "parameter `classes` is missing; it must be a positive integer";
        assert_eq!(sentence(given.positive("classes")), known, "what the plugin reads is not misspelt");
    }

    #[test]
    fn a_parameter_nobody_asked_for_is_refused_by_naming_the_known_ones() {
        let given = parameters(&[("hiden", Value::Int(64))]);
        assert_eq!(sentence(given.refuse_unknown()), "this plugin takes no parameters");
        assert_eq!(given.positive_or("hidden", 1).unwrap(), 1);
        assert!(!given.truth_or("bidirectional", false).unwrap());
        assert_eq!(
            sentence(given.refuse_unknown()),
            "parameter `hiden` is unknown or unused here; perhaps `hidden` is meant; known are `hidden`, `bidirectional`"
        );
        assert!(given.has("hiden"));
        given.refuse_unknown().unwrap();
    }
}
