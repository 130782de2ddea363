//! Where a server is, as people write it.

use std::fmt;
use std::net::IpAddr;

use crate::error::ClientError;

/// What an address should be.
pub(crate) const FORM: &str = "it should be of the form http://HOST:PORT or https://HOST:PORT";

/// A server's address, such as `http://127.0.0.1:8000` or `https://models.example`, with the path under which it serves if it is not the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    tls: bool,
    host: String,
    port: u16,
    path: String,
}

impl Address {
    /// Reads an address; `http://` and the port (80, or 443 with `https://`) may be left out.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(text: &str) -> Result<Self, ClientError> {
        let refuse = |what: &'static str| ClientError::Address { address: text.to_owned(), what };
        let (tls, rest) = match text.strip_prefix("https://") {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix("http://").unwrap_or(text)),
        };
        if rest.contains("://") {
            return Err(refuse("it begins with neither http:// nor https://"));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#' | b'@' | b'\\' | b'"'));
        if authority.is_empty() || !plain(rest) {
            return Err(refuse(FORM));
        }
        let (host, port) = match authority.rsplit_once(':') {
            // The colons of an IPv6 address stand within brackets.
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| refuse("its port is not a number up to 65535"))?),
            _ => (authority, if tls { 443 } else { 80 }),
        };
        let bracketed = host.starts_with('[') && host.ends_with(']');
        if host.is_empty() || (host.contains(':') && !bracketed) {
            return Err(refuse(FORM));
        }
        let path = path.trim_matches('/');
        let path = if path.is_empty() { String::new() } else { format!("/{path}") };
        Ok(Self { tls, host: host.to_owned(), port, path })
    }

    /// Whether it is spoken to by TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Whether it says by itself that the server is on this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.bare_host().parse().is_ok_and(|address: IpAddr| address.is_loopback())
    }

    /// The host as a certificate names it: an IPv6 address without its brackets.
    pub(crate) fn bare_host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// `http` or `https`.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }

    /// Host and port, as the `Host` header has them and as they can be looked up.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The path of something the server serves at `path`, which begins with a slash.
    #[must_use]
    pub fn path_of(&self, path: &str) -> String {
        format!("{}{path}", self.path)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}{}", self.scheme(), self.host, self.port, self.path)
    }
}

/// A name as a part of a path: everything but letters, digits and `-._~` as `%XX`.
pub(crate) fn segment(name: &str) -> String {
    let mut path = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let cases = [
            ("http://localhost:8000", "http://localhost:8000"),
            ("localhost:8000/", "http://localhost:8000"),
            ("10.0.0.1", "http://10.0.0.1:80"),
            ("http://[::1]:9", "http://[::1]:9"),
            ("http://[::1]", "http://[::1]:80"),
            ("https://models.example", "https://models.example:443"),
            ("https://[::1]:9/a", "https://[::1]:9/a"),
            ("http://host:1/some/where/", "http://host:1/some/where"),
        ];
        for (text, address) in cases {
            assert_eq!(Address::parse(text).unwrap().to_string(), address);
        }
        assert_eq!(Address::parse("h:1/a").unwrap().path_of("/v2"), "/a/v2");
        for text in ["", "http://", "http://:80", "http://h:99999", "http://h:x", "https://", "http://a b", "::1", "h/?q", "u@h", "h\r\n"] {
            Address::parse(text).unwrap_err();
        }
        let other = Address::parse("ftp://x").unwrap_err().to_string();
        assert_eq!(other, "`ftp://x` is not the address of a server: it begins with neither http:// nor https://");
    }

    #[test]
    fn an_address_says_whether_it_is_this_machine() {
        for text in ["localhost:1", "127.0.0.9", "https://[::1]:9"] {
            assert!(Address::parse(text).unwrap().is_loopback(), "{text}");
        }
        for text in ["10.0.0.1", "[::2]:1", "localhost.example"] {
            assert!(!Address::parse(text).unwrap().is_loopback(), "{text}");
        }
    }

    #[test]
    fn names_cannot_leave_their_part_of_the_path() {
        assert_eq!(segment("digits-1.0_b~"), "digits-1.0_b~");
        assert_eq!(segment("a/../b?c#d é%"), "a%2F..%2Fb%3Fc%23d%20%C3%A9%25");
    }
}
