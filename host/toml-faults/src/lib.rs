//! Where a TOML file is wrong: the line and the whole key, for the person who wrote it.
//!
//! Bundles, devices and a server's settings are such files, and each says what is wrong with a value in the same way. What a value may be is the business
//! of those who read it.

use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Fault {
    /// Counted from 1.
    pub line: usize,
    /// The key from the top of the file, as it could be written: `cells."lstm.step".compute_us`. Empty where it is about no key.
    pub key: String,
    /// What is wrong there.
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.problem)
    }
}

/// Tables and lists may stand in one another so deep. The parser takes keys of 80 parts in tables that are nested 80 deep: thousands of levels, each of
/// them one of the stack of whoever reads them, and a stack that overflows ends the process.
const LEVELS_MAX: usize = 64;

/// Reads a file's text.
///
/// # Errors
/// If it is no TOML, nested too deep, or not what is to be read.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, Fault> {
    if let Some(place) = too_deep(text) {
        let problem = format!("tables and lists stand in one another more than {LEVELS_MAX} deep");
        return Err(Fault { line: line_of(text, place), key: String::new(), problem });
    }
    toml::from_str(text).map_err(|error| at(text, error.span().unwrap_or(0..text.len()), in_words(error.message().replace('\n', ", "))))
}

/// What was expected, in words of TOML: the parser names types of Rust.
fn in_words(problem: String) -> String {
    let Some((before, expected)) = problem.rsplit_once(", expected ") else { return problem };
    let expected = match expected {
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number from 0 on",
        "i32" => "a whole number from -2147483648 to 2147483647",
        "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a sequence" => "a list",
        _ => return problem,
    };
    format!("{before}, expected {expected}")
}

/// Where something stands below the last level. Taken apart from the top, so that dropping it is not recursive either.
fn too_deep(text: &str) -> Option<usize> {
    let (table, _) = DeTable::parse_recoverable(text);
    let mut found: Option<usize> = None;
    let mut left = vec![(0, table.span().start, DeValue::Table(table.into_inner()))];
    while let Some((level, place, value)) = left.pop() {
        if level > LEVELS_MAX {
            found = Some(found.map_or(place, |first| first.min(place)));
        }
        match value {
            DeValue::Table(table) => left.extend(table.into_iter().map(|(key, value)| (level + 1, key.span().start, value.into_inner()))),
            DeValue::Array(list) => left.extend(list.into_iter().map(|value| (level + 1, value.span().start, value.into_inner()))),
            _ => {}
        }
    }
    found
}

/// That is wrong with what stands there, in bytes of the text.
#[must_use]
pub fn at(text: &str, place: Range<usize>, problem: String) -> Fault {
    let (table, _) = DeTable::parse_recoverable(text);
    let line = line_of(text, place.start);
    let key = match key_at(table.get_ref(), &place) {
        _ if table.span() == place => String::new(),
        Some(keys) => joined(&keys),
        None => written_at(text, line),
    };
    Fault { line, key, problem }
}

/// The line of a key, counted from 1; of the last that is there on the way to it, if it is not.
#[must_use]
pub fn line_of_key(text: &str, key: &[&str]) -> usize {
    let (table, _) = DeTable::parse_recoverable(text);
    let (mut found, mut at) = (Some(table.get_ref()), 0);
    for name in key {
        let Some((key, value)) = found.and_then(|table| table.iter().find(|(key, _)| key.get_ref() == name)) else { break };
        (found, at) = (value.get_ref().as_table(), key.span().start);
    }
    line_of(text, at)
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// The keys that lead to what stands there; none if it is no part of the table.
fn key_at<'t>(table: &'t DeTable<'_>, place: &Range<usize>) -> Option<Vec<&'t str>> {
    table.iter().find_map(|(key, value)| {
        let mut keys = vec![key.get_ref().as_ref()];
        match inside(value, place) {
            Some(below) => keys.extend(below),
            None if holds(&key.span(), place) || holds(&value.span(), place) => {}
            None => return None,
        }
        Some(keys)
    })
}

fn inside<'t>(value: &'t Spanned<DeValue<'_>>, place: &Range<usize>) -> Option<Vec<&'t str>> {
    value.get_ref().as_table().and_then(|table| key_at(table, place))
}

fn holds(span: &Range<usize>, place: &Range<usize>) -> bool {
    span.start <= place.start && place.end <= span.end
}

fn joined(keys: &[&str]) -> String {
    let bare = |key: &str| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    keys.iter().map(|key| if bare(key) { (*key).to_owned() } else { format!("{key:?}") }).collect::<Vec<_>>().join(".")
}

/// The key in a line of a text that could not be read that far, as it is written.
fn written_at(text: &str, line: usize) -> String {
    let header = |line: &str| {
        let line = line.trim().strip_prefix('[')?.trim_end_matches(']');
        line.starts_with(|first: char| first.is_alphabetic() || first == '"').then(|| line.to_owned())
    };
    let lines: Vec<&str> = text.lines().take(line).collect();
    let Some((last, above)) = lines.split_last() else { return String::new() };
    if let Some(header) = header(last) {
        return header;
    }
    let key = last.split_once('=').map(|(key, _)| key.trim()).filter(|key| !key.is_empty() && !key.starts_with('#'));
    let table = above.iter().rev().find_map(|line| header(line));
    table.into_iter().chain(key.map(str::to_owned)).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "they are read, or refused")]
    struct Table {
        name: String,
        #[serde(default)]
        cells: BTreeMap<String, Cell>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields, expecting = "a table")]
    #[expect(dead_code, reason = "they are read, or refused")]
    struct Cell {
        rows: Vec<u32>,
    }

    #[test]
    fn a_fault_has_its_line_and_its_whole_key() {
        let cases = [
            ("", "line 1: missing field `name`"),
            ("[cells.a]\nrows = [1]\n", "line 1: missing field `name`"),
            ("name = 3\n", "line 1: name: invalid type: integer `3`, expected a string"),
            ("name = \"x\"\nspeed = 3\n", "line 2: speed: unknown field `speed`, expected `name` or `cells`"),
            ("name = \"x\"\n[cells.a]\n", "line 2: cells.a: missing field `rows`"),
            ("name = \"x\"\n[cells.a]\nrows = 3\n", "line 3: cells.a.rows: invalid type: integer `3`, expected a list"),
            ("name = \"x\"\n[cells.\"a.b\"]\nrows = 3\n", "line 3: cells.\"a.b\".rows: invalid type: integer `3`, expected a list"),
            (
                "name = \"x\"\n[cells.a]\nrows = [\n  1,\n  \"two\",\n]\n",
                "line 5: cells.a.rows: invalid type: string \"two\", expected a whole number from 0 to 4294967295",
            ),
            (
                "name = \"x\"\n[cells]\na = { rows = [-1] }\n",
                "line 3: cells.a.rows: invalid value: integer `-1`, expected a whole number from 0 to 4294967295",
            ),
            ("name = \"x\"\ncells.a.rows = true\n", "line 2: cells.a.rows: invalid type: boolean `true`, expected a list"),
            ("name = \"x\"\n[cells]\na = 3\n", "line 3: cells.a: invalid type: integer `3`, expected a table"),
            ("name = \"x\"\n[cells.a]\nrows = [1]\nrow = 2\n", "line 4: cells.a.row: unknown field `row`, expected `rows`"),
            ("name = \"x\"\n[cells.a]\nrows = [1]\nrows = [2]\n", "line 4: cells.a.rows: duplicate key"),
            ("name = \"x\"\n[cells.a]\nrows = [1]\n[cells.a]\n", "line 4: cells.a: duplicate key"),
            ("name = \"x\"\n[cells.a\n", "line 2: cells.a: unclosed table, expected `]`"),
        ];
        for (text, said) in cases {
            assert_eq!(read::<Table>(text).unwrap_err().to_string(), said, "{text}");
        }
    }

    #[test]
    fn a_key_has_a_line() {
        let text = "name = \"x\"\n\n[cells.a]\nrows = [\n 1]\n[cells.\"b.c\"]\nrows = []\n";
        let cases: [(&[&str], usize); 5] =
            [(&["name"], 1), (&["cells", "a", "rows"], 4), (&["cells", "b.c", "rows"], 7), (&["cells", "a", "none"], 3), (&["none"], 1)];
        for (key, line) in cases {
            assert_eq!(line_of_key(text, key), line, "{key:?}");
        }
    }
}
