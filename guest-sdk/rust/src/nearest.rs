//! Which of some names may be meant by another one, for sentences about a name that does not exist.

/// At most so many names are compared, each by its first characters.
const NAMES_MAX: usize = 4096;
const CHARACTERS_MAX: usize = 96;

/// The names closest to that one, at most `most` of them, the closest first. None if it resembles none of them.
///
/// A name that contains the other counts as closest: `module.fc.weight` for `fc.weight`, `num_classes` for `classes`.
pub(crate) fn nearest<'a>(name: &str, among: impl Iterator<Item = &'a str>, most: usize) -> Vec<&'a str> {
    let characters = name.chars().count();
    let far = (characters / 3 + 1).min(characters.saturating_sub(1));
    let ranked = among.take(NAMES_MAX).filter_map(|other| {
        let distance = distance(name, other);
        let contains =
            !name.is_empty() && !other.is_empty() && (other.ends_with(name) || name.ends_with(other) || starts_with_word(name, other));
        (contains || distance <= far).then_some((!contains, distance, other))
    });
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_unstable();
    ranked.into_iter().take(most).map(|(_, _, other)| other).collect()
}

/// Whether one is the other and more words: `hidden_size` of `hidden`.
fn starts_with_word(a: &str, b: &str) -> bool {
    let more = |long: &str, short: &str| long.strip_prefix(short).is_some_and(|rest| rest.starts_with(['_', '-', '.']));
    more(a, b) || more(b, a)
}

/// Levenshtein's.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(CHARACTERS_MAX).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().take(CHARACTERS_MAX).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_contain_the_other_come_first_and_then_the_most_alike() {
        let cases: [(&str, &[&str], &[&str]); 6] = [
            ("fc.weight", &["fc.bias", "fd.weight", "module.fc.weight"], &["module.fc.weight", "fd.weight"]),
            ("lstm.weight_ih_l0", &["weight_hh_l0", "weight_ih_l0"], &["weight_ih_l0", "weight_hh_l0"]),
            ("classes", &["glasses", "layers", "num_classes"], &["num_classes", "glasses"]),
            ("hidden_size", &["head", "hidden", "layers"], &["hidden"]),
            ("bidirectionnal", &["bidirectional", "bias"], &["bidirectional"]),
            ("x", &["encoder.layer.weight", ""], &[]),
        ];
        for (name, among, expected) in cases {
            assert_eq!(nearest(name, among.iter().copied(), 2), expected, "{name}");
        }
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
