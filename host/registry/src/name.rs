//! Names that people choose: of tenants and of models. One alphabet, so that a name is at home in a URL, a file name and a log line.

use std::fmt;
use std::sync::Arc;

const CHARACTERS_MAX: usize = 128;

/// Why a name is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing, or more than fits.
    #[error("the name of a {what} has 1 to {CHARACTERS_MAX} characters, not {characters}")]
    Length {
        /// Of what: "model" or "tenant".
        what: &'static str,
        /// How many it has.
        characters: usize,
    },
    /// A character outside the alphabet, or a dot in front.
    #[error("`{}` cannot be the name of a {what}: letters, digits, `.`, `_` and `-` are allowed, and it must not start with `.`", name.escape_default())]
    Character {
        /// Of what: "model" or "tenant".
        what: &'static str,
        /// The name as it came.
        name: String,
    },
}

fn parse(what: &'static str, name: &str) -> Result<Arc<str>, NameError> {
    let characters = name.chars().count();
    if characters == 0 || characters > CHARACTERS_MAX {
        return Err(NameError::Length { what, characters });
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.starts_with('.') || !name.bytes().all(allowed) {
        return Err(NameError::Character { what, name: name.to_owned() });
    }
    Ok(name.into())
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// A name of 1 to 128 letters, digits, `.`, `_` and `-` that does not start with `.`.
            ///
            /// # Errors
            /// One sentence that says what a name may look like.
            pub fn parse(name: &str) -> Result<Self, NameError> {
                parse($what, name).map(Self)
            }

            /// As it is written.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        /// So that maps by name are asked with text.
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().to_owned()
            }
        }
    };
}

name!(
    /// What a tenant is called.
    TenantName,
    "tenant"
);
name!(
    /// What a model is called, within its tenant.
    ModelName,
    "model"
);

const DEFAULT: &str = "default";
const OPERATOR: &str = "operator";

impl TenantName {
    /// The tenant that a server without keys works for. It is always there.
    #[must_use]
    pub fn default_tenant() -> Self {
        Self(DEFAULT.into())
    }

    /// The tenant that holds the operator's keys, which see every tenant. It is always there.
    #[must_use]
    pub fn operator() -> Self {
        Self(OPERATOR.into())
    }

    /// Whether this is [`TenantName::operator`].
    #[must_use]
    pub fn is_operator(&self) -> bool {
        self.as_str() == OPERATOR
    }

    /// Whether this tenant exists in every registry and cannot be deleted.
    #[must_use]
    pub fn is_built_in(&self) -> bool {
        matches!(self.as_str(), DEFAULT | OPERATOR)
    }
}

/// Whether a character controls the text around it, or its direction: a name with one is not read as it is written.
pub(crate) fn is_hidden(character: char) -> bool {
    matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') || character.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_alphabet() {
        for good in ["a", "mnist-lstm", "v1.2_x", "-", "_.", "0", &"x".repeat(128)] {
            assert_eq!(ModelName::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "a b", "ä", "a\0", "a\n", &"x".repeat(129)] {
            assert!(ModelName::parse(bad).is_err(), "{bad:?} was taken");
        }
        assert_eq!(
            TenantName::parse("a\n").unwrap_err().to_string(),
            r"`a\n` cannot be the name of a tenant: letters, digits, `.`, `_` and `-` are allowed, and it must not start with `.`"
        );
        assert_eq!(ModelName::parse("").unwrap_err().to_string(), "the name of a model has 1 to 128 characters, not 0");
    }
}
