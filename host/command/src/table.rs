//! Tables for people.

/// A table: columns are as wide as their widest cell, and numbers are aligned to the right.
#[must_use]
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(head.get(column).map(|cell| cell.chars().count())).max().unwrap_or(0)
    };
    let is_number = |column: usize| {
        let cells = || rows.iter().filter_map(|row| row.get(column)).filter(|cell| !cell.is_empty() && *cell != "-");
        cells().next().is_some() && cells().all(|cell| cell.strip_suffix(" %").unwrap_or(cell).parse::<f64>().is_ok())
    };
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().enumerate().map(|(column, cell)| {
            let width = width(column);
            if is_number(column) { format!("{cell:>width$}") } else { format!("{cell:width$}") }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let body = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    std::iter::once(line(head.to_vec())).chain(body).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["digits".to_owned(), "7".to_owned(), "ready".to_owned()], vec!["d".to_owned(), "12".to_owned(), String::new()]];
        assert_eq!(table(&["name", "version", "state"], &rows), "name    version  state\ndigits        7  ready\nd            12\n");
        let rows = [["max", "0.94", "7 %", "-"], ["200", "103.40", "12 %", "-"], ["400", "-", "0 %", "-"]]
            .map(|row| row.map(str::to_owned).to_vec());
        let aligned = "rate  p50 µs  busy  late\nmax     0.94   7 %  -\n200   103.40  12 %  -\n400        -   0 %  -\n";
        assert_eq!(table(&["rate", "p50 µs", "busy", "late"], &rows), aligned);
    }
}
