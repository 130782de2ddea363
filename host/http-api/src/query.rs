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

/// A parameter that is a number from 0; 0 if it is not there.
pub(crate) fn number(uri: &Uri, name: &str) -> Result<u64, Refusal> {
    let refusal = |_| Refusal::bad_input(format!("the query parameter `{name}` takes a whole number from 0"));
    value(uri, name).map_or(Ok(0), |value| value.parse().map_err(refusal))
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
        let uri: Uri = "/?after=17&bad=-1&worse=18446744073709551616".parse().unwrap();
        assert_eq!((number(&uri, "after").unwrap(), number(&uri, "other").unwrap()), (17, 0));
        assert!(number(&uri, "bad").is_err() && number(&uri, "worse").is_err());
    }
}
