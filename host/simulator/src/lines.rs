//! The lines of lists and traces.

use crate::error::Error;

/// Those that hold something, each with its number, from 1; a byte order mark in front, as some programs write one, is none of it.
///
/// # Errors
/// If they are more than that: none is left out without a word.
pub(crate) fn numbered<'a>(file: &str, text: &'a str, most: usize) -> Result<impl Iterator<Item = (usize, &'a str)>, Error> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = || (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    match lines().nth(most) {
        None => Ok(lines()),
        Some((line, _)) => {
            let problem = format!("a file has {most} lines at most; give a part of it");
            Err(Error::Line { file: file.to_owned(), line, field: "line", problem })
        }
    }
}

/// A line's fields, which commas or tabs separate.
pub(crate) fn fields(line: &str) -> Vec<&str> {
    line.split([',', '\t']).map(str::trim).collect()
}

/// Whether the fields are such names of columns, or the first of them.
pub(crate) fn name_columns(fields: &[&str], known: &[&[&str]]) -> bool {
    let are =
        |names: &&[&str]| fields.len() <= names.len() && fields.iter().zip(*names).all(|(field, name)| field.eq_ignore_ascii_case(name));
    known.iter().any(are)
}

/// What lies beyond the columns that there are, if anything does, is not let go of without a word.
///
/// # Errors
/// The first field too many.
pub(crate) fn no_more(file: &str, line: usize, fields: &[&str], columns: &[&str]) -> Result<(), Error> {
    match fields.get(columns.len()) {
        None => Ok(()),
        Some(field) => {
            let problem = format!("`{field}` is one too many: a line has {} at most", columns.join(","));
            Err(Error::Line { file: file.to_owned(), line, field: "columns", problem })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_in_front_is_no_part_of_the_first_line() {
        assert_eq!(numbered("t.csv", "\u{feff}5\n6\n", 2).map(Iterator::collect::<Vec<_>>), Ok(vec![(1, "5"), (2, "6")]));
    }

    #[test]
    fn columns_have_known_names() {
        let known: &[&[&str]] = &[&["t_us", "in"], &["time"]];
        for (line, are) in
            [("t_us", true), ("T_us,in", true), ("time", true), ("t_us,out", false), ("in", false), ("t_us,in,in", false), ("", false)]
        {
            assert_eq!(name_columns(&fields(line), known), are, "{line}");
        }
    }

    #[test]
    fn a_file_that_is_too_long_is_not_cut() {
        let read = |text| numbered("t.csv", text, 2).map(Iterator::collect::<Vec<_>>).map_err(|error| error.to_string());
        assert_eq!(read("a\n\nb\n \n"), Ok(vec![(1, "a"), (3, "b")]));
        assert_eq!(read("a\n\nb\nc\nd\n"), Err("t.csv: line 4: line: a file has 2 lines at most; give a part of it".to_owned()));
    }
}
