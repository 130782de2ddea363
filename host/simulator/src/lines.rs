//! The lines of lists and traces.

use crate::error::Error;

/// Those that hold something, each with its number, from 1.
///
/// # Errors
/// If they are more than that: none is left out without a word.
pub(crate) fn numbered<'a>(file: &str, text: &'a str, most: usize) -> Result<impl Iterator<Item = (usize, &'a str)>, Error> {
    let lines = || (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    match lines().nth(most) {
        None => Ok(lines()),
        Some((line, _)) => {
            let problem = format!("a file has {most} lines at most; give a part of it");
            Err(Error::Line { file: file.to_owned(), line, field: "line", problem })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_too_long_is_not_cut() {
        let read = |text| numbered("t.csv", text, 2).map(Iterator::collect::<Vec<_>>).map_err(|error| error.to_string());
        assert_eq!(read("a\n\nb\n \n"), Ok(vec![(1, "a"), (3, "b")]));
        assert_eq!(read("a\n\nb\nc\nd\n"), Err("t.csv: line 4: line: a file has 2 lines at most; give a part of it".to_owned()));
    }
}
