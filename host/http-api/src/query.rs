//! The few parameters that stand in a path's query.

use http::Uri;

use crate::refusal::Refusal;

/// The value of a query parameter, if it is there. What may stand here needs no escapes, so none are read.
pub(crate) fn value<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    uri.query()?.split('&').find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name).map(|(_, value)| value))
}

/// A parameter that is `true` or `false`.
pub(crate) fn truth(uri: &Uri, name: &str, default: bool) -> Result<bool, Refusal> {
    match value(uri, name) {
        None => Ok(default),
        Some("true") => Ok(true),
        Some("false") => Ok(false),
        Some(_) => Err(Refusal::bad_input(format!("the query parameter `{name}` takes true or false"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_by_name() {
        let uri: Uri = "/v1/models?tenant=a&activate=false&b".parse().unwrap();
        assert_eq!(value(&uri, "tenant"), Some("a"));
        assert_eq!(value(&uri, "b"), None);
        assert!(!truth(&uri, "activate", true).unwrap());
        assert!(truth(&uri, "other", true).unwrap());
        assert!(truth(&"/?activate=1".parse().unwrap(), "activate", true).is_err());
    }
}
