//! What a person reads when something is refused.

/// Says what is wrong with an outcome that should be an error of one sentence with these pieces, in their order; nothing if it is one.
pub(crate) fn complaint<T>(what: &str, outcome: Result<T, impl ToString>, wanted: &[&str]) -> Option<String> {
    let Err(error) = outcome else { return Some(format!("{what}: was taken")) };
    let sentence = error.to_string();
    if sentence.contains('\n') {
        return Some(format!("{what}: more than one line: {sentence}"));
    }
    let mut rest = sentence.as_str();
    for piece in wanted {
        match rest.split_once(piece) {
            Some((_, after)) => rest = after,
            None => return Some(format!("{what}: `{piece}` is not (or not there) in: {sentence}")),
        }
    }
    None
}
