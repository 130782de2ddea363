//! Lengths, pairs and trees out of files: a line for each, fields separated by commas or tabs.

use crate::error::Error;
use crate::lines::{fields, name_columns, no_more, numbered};

use super::lengths::{LENGTH_MAX, Lengths, Pairs};
use super::trees::{Tree, Trees};

/// Lines of a list, at most.
const LINES_MAX: usize = 1 << 22;
/// What a first line may call the columns.
const LENGTH: &[&str] = &["length", "count"];
const PAIR: &[&str] = &["source", "target"];
const TREE: &[&[&str]] = &[&["tree"], &["preorder"]];

impl Lengths {
    /// Reads `length` or `length,count` from each line; `file` is what errors call it. The first line may name the columns like that.
    ///
    /// # Errors
    /// If a line holds something else, or none holds anything.
    pub fn from_list(file: &str, text: &str) -> Result<Self, Error> {
        let mut counts = Vec::new();
        for line in lines(file, text, |fields| name_columns(fields, &[LENGTH]))? {
            no_more(file, line.number, &line.fields, LENGTH)?;
            let length = line.length(file, 0, "length")?;
            let count = match line.fields.get(1) {
                None => 1,
                Some(count) => count.parse().map_err(|_| line.wrong(file, "count", format!("`{count}` is no number of requests")))?,
            };
            counts.push((length, count));
        }
        Self::seen(&counts).ok_or_else(|| Error::Empty { file: file.to_owned(), what: "length" })
    }
}

impl Pairs {
    /// Reads `source,target` from each line, as [`Lengths::from_list`] does.
    ///
    /// # Errors
    /// If a line holds something else, or none holds anything.
    pub fn from_list(file: &str, text: &str) -> Result<Self, Error> {
        let pairs = lines(file, text, |fields| name_columns(fields, &[PAIR]))?
            .map(|line| {
                no_more(file, line.number, &line.fields, PAIR)?;
                Ok((line.length(file, 0, "source length")?, line.length(file, 1, "target length")?))
            })
            .collect::<Result<Vec<_>, Error>>()?;
        if pairs.is_empty() {
            return Err(Error::Empty { file: file.to_owned(), what: "pair of lengths" });
        }
        Ok(Self::Listed(pairs))
    }
}

impl Trees {
    /// Reads a tree in preorder (`BLBLL`: `B` an internal node, then its two subtrees; `L` a leaf) from the last field of each line; the others are
    /// free. The first line may call it `tree` or `preorder`.
    ///
    /// # Errors
    /// If a line holds something else, or none holds anything.
    pub fn from_list(file: &str, text: &str) -> Result<Self, Error> {
        let names = |fields: &[&str]| fields.last().is_some_and(|field| name_columns(&[field], TREE));
        let trees = lines(file, text, names)?
            .map(|line| {
                let field = line.fields.last().copied().unwrap_or("");
                Tree::preorder(field).ok_or_else(|| line.wrong(file, "tree", format!("`{field}` is no tree like BLBLL")))
            })
            .collect::<Result<Vec<_>, Error>>()?;
        Self::listed(trees).ok_or_else(|| Error::Empty { file: file.to_owned(), what: "tree" })
    }
}

struct Line<'a> {
    number: usize,
    fields: Vec<&'a str>,
}

impl Line<'_> {
    fn wrong(&self, file: &str, field: &'static str, problem: String) -> Error {
        Error::Line { file: file.to_owned(), line: self.number, field, problem }
    }

    fn length(&self, file: &str, at: usize, field: &'static str) -> Result<u32, Error> {
        let text = self.fields.get(at).copied().unwrap_or("");
        let length = text.parse().ok().filter(|length| (1..=LENGTH_MAX).contains(length));
        length.ok_or_else(|| self.wrong(file, field, format!("`{text}` is no length from 1 to {LENGTH_MAX}")))
    }
}

fn lines<'a>(file: &str, text: &'a str, names_columns: impl Fn(&[&str]) -> bool) -> Result<impl Iterator<Item = Line<'a>>, Error> {
    let lines = numbered(file, text, LINES_MAX)?;
    let mut lines = lines.map(|(number, line)| Line { number, fields: fields(line) }).peekable();
    if lines.peek().is_some_and(|line| names_columns(&line.fields)) {
        lines.next();
    }
    Ok(lines)
}
