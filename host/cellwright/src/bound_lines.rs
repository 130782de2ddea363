//! Lines of an input that is not trusted to have ends.

use std::io::{BufRead, Read};

use anyhow::{Context, bail};

/// Longer lines are refused: the largest request is far below.
const LINE_BYTES_MAX: u64 = 256 << 20;

/// The next line that is not blank, with its number from 1; none at the end.
pub(crate) struct Lines<R> {
    reader: R,
    number: usize,
}

impl<R: BufRead> Lines<R> {
    pub(crate) const fn new(reader: R) -> Self {
        Self { reader, number: 0 }
    }

    pub(crate) fn next(&mut self) -> anyhow::Result<Option<(usize, Vec<u8>)>> {
        loop {
            let mut line = Vec::new();
            self.number += 1;
            let number = self.number;
            let read = self.reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
            if read.with_context(|| format!("line {number} of the input cannot be read"))? == 0 {
                return Ok(None);
            }
            if line.len() as u64 == LINE_BYTES_MAX && line.last() != Some(&b'\n') {
                bail!("line {number} of the input is longer than {LINE_BYTES_MAX} bytes; a request is one line");
            }
            if !line.trim_ascii().is_empty() {
                return Ok(Some((number, line)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_are_skipped_and_counted() {
        let mut lines = Lines::new(&b"a\n\n  \r\nb"[..]);
        assert_eq!(lines.next().unwrap(), Some((1, b"a\n".to_vec())));
        assert_eq!(lines.next().unwrap(), Some((4, b"b".to_vec())));
        assert_eq!(lines.next().unwrap(), None);
    }
}
