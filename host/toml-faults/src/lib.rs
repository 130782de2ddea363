//! Where a TOML file is wrong: the line and the whole key, for the person who wrote it.
//!
//! Bundles, devices and a server's settings are such files, and each says what is wrong with a value in the same way. What a value may be is the business
//! of those who read it.

use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toml_parser::decoder::Encoding;
use toml_parser::parser::{EventReceiver, parse_document};
use toml_parser::{ErrorSink, Source, Span};

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

/// Tables and lists may stand in one another so deep. The parser takes keys of 80 parts in tables that are nested 80 deep. It makes and drops such
/// values with a few stack frames a level, and a stack that overflows ends the process. So the text is measured before it makes any value of it.
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

/// Where the first value stands that is below the last level.
fn too_deep(text: &str) -> Option<usize> {
    let source = Source::new(text);
    let mut levels = Levels { inside: vec![1], level: 1, deepest: None };
    parse_document(&source.lex().into_vec(), &mut levels, &mut ());
    levels.deepest
}

/// Counts how deep a text's values stand, from what the parser reads in it.
struct Levels {
    /// For each table or list that is open, the level of what stands in it.
    inside: Vec<usize>,
    /// Of the key or value that is being read. Each part of a key is a level.
    level: usize,
    /// Where the first key or value begins that stands too deep.
    deepest: Option<usize>,
}

impl Levels {
    fn header(&mut self) {
        self.inside = vec![1];
        self.next();
    }

    fn header_read(&mut self) {
        self.inside = vec![self.level + 1];
        self.next();
    }

    /// Whether what stands there may be entered.
    fn open(&mut self, span: Span) -> bool {
        self.stands(span);
        self.inside.push(self.level + 1);
        self.next();
        self.deepest.is_none()
    }

    fn close(&mut self) {
        if self.inside.len() > 1 {
            self.inside.pop();
        }
        self.next();
    }

    fn next(&mut self) {
        self.level = self.inside.last().copied().unwrap_or(1);
    }

    fn stands(&mut self, span: Span) {
        if self.level > LEVELS_MAX && self.deepest.is_none() {
            self.deepest = Some(span.start());
        }
    }
}

impl EventReceiver for Levels {
    fn std_table_open(&mut self, _: Span, _: &mut dyn ErrorSink) {
        self.header();
    }

    fn std_table_close(&mut self, _: Span, _: &mut dyn ErrorSink) {
        self.header_read();
    }

    fn array_table_open(&mut self, _: Span, _: &mut dyn ErrorSink) {
        self.header();
    }

    fn array_table_close(&mut self, _: Span, _: &mut dyn ErrorSink) {
        self.header_read();
    }

    fn inline_table_open(&mut self, span: Span, _: &mut dyn ErrorSink) -> bool {
        self.open(span)
    }

    fn inline_table_close(&mut self, _: Span, _: &mut dyn ErrorSink) {
        self.close();
    }

    fn array_open(&mut self, span: Span, _: &mut dyn ErrorSink) -> bool {
        self.open(span)
    }

    fn array_close(&mut self, _: Span, _: &mut dyn ErrorSink) {
        self.close();
    }

    fn simple_key(&mut self, span: Span, _: Option<Encoding>, _: &mut dyn ErrorSink) {
        self.stands(span);
    }

    fn key_sep(&mut self, _: Span, _: &mut dyn ErrorSink) {
        self.level += 1;
    }

    fn scalar(&mut self, span: Span, _: Option<Encoding>, _: &mut dyn ErrorSink) {
        self.stands(span);
    }

    fn value_sep(&mut self, _: Span, _: &mut dyn ErrorSink) {
        self.next();
    }

    fn newline(&mut self, _: Span, _: &mut dyn ErrorSink) {
        self.next();
    }
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

    /// On a stack of 256 KiB: what the parser makes of such a text overflows one of two megabytes.
    #[test]
    fn what_stands_too_deep_makes_no_values() {
        let keys = ["a"; 79].join(".");
        let deep = format!("{}1{}", format!("{{{keys} = ").repeat(78), "}".repeat(78));
        let lists = |levels: usize| format!("name = {}{}", "[".repeat(levels), "]".repeat(levels));
        let parts = |parts: usize| format!("[{}]\nb = 1", vec!["a"; parts].join("."));
        let cases = [
            (format!("name = 1\ndeep = {deep}"), Some(2)),
            (format!("name = 1\ntwice = {deep}\ntwice = {deep}"), Some(2)),
            (format!("x = {{ a = 1, b = [1, {{ c = 2 }}], deep = {deep} }}"), Some(1)),
            (format!("{keys} = 1"), Some(1)),
            (lists(64), None),
            (lists(65), Some(1)),
            (parts(63), None),
            (parts(64), Some(2)),
            (format!("[[{keys}]]"), Some(1)),
            (format!("a = [1, 2]\nb = {{ c.d = 1, e.f = 2 }}\n{}", "[a.b]\nc.d = 1\n".repeat(100)), None),
            ("]}".repeat(100), None),
        ];
        for (text, line) in cases {
            let found = std::thread::Builder::new().stack_size(256 << 10).spawn(move || too_deep(&text).map(|place| line_of(&text, place)));
            assert_eq!(found.unwrap().join().unwrap(), line);
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
