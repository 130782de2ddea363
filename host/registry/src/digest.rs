//! Content hashes: what a blob is named by, and what a version is recognised by.

use std::fmt;
use std::str::FromStr;

/// A BLAKE3 hash, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// A text that is no digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 lower-case hexadecimal digits")]
pub struct DigestError;

/// Stands in front of what is hashed for a version, so that no blob has a version's digest.
const VERSION_DOMAIN: &[u8] = b"cellwright version 1\n";

impl Digest {
    /// The hash of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        blake3::hash(bytes).into()
    }

    /// The digest of a version made of these files, in whichever order they come.
    ///
    /// Canonical form, hashed with BLAKE3: the 21 bytes `cellwright version 1\n`; then for each file, sorted by the bytes of its path: the
    /// length of the path as 8 bytes, least first, the path, and the 32 bytes of the digest of its contents.
    #[must_use]
    pub fn of_version(files: &[(&str, Digest)]) -> Self {
        let mut files = files.to_vec();
        files.sort_unstable();
        let mut hasher = blake3::Hasher::new();
        hasher.update(VERSION_DOMAIN);
        for (path, digest) in files {
            hasher.update(&(path.len() as u64).to_le_bytes());
            hasher.update(path.as_bytes());
            hasher.update(&digest.0);
        }
        hasher.finalize().into()
    }

    /// The hash itself.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl From<blake3::Hash> for Digest {
    fn from(hash: blake3::Hash) -> Self {
        Self(*hash.as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        // BLAKE3's own parser also takes capitals; a blob has one name only.
        if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(DigestError);
        }
        blake3::Hash::from_hex(text).map(Self::from).map_err(|_| DigestError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_what_it_writes() {
        let digest = Digest::of(b"");
        assert_eq!(digest.to_string(), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for bad in ["", "af", &digest.to_string().to_uppercase(), &format!("{digest}0"), &"ä".repeat(32)] {
            assert_eq!(bad.parse::<Digest>(), Err(DigestError), "{bad}");
        }
    }

    #[test]
    fn a_version_is_recognised_whatever_the_order_of_its_files() {
        let (x, y) = (Digest::of(b"x"), Digest::of(b"y"));
        let digest = Digest::of_version(&[("b", x), ("a", y)]);
        assert_eq!(digest, Digest::of_version(&[("a", y), ("b", x)]));
        assert_ne!(digest, Digest::of_version(&[("a", x), ("b", y)]));
        assert_ne!(Digest::of_version(&[("ab", x)]), Digest::of_version(&[("a", x)]));
        // The form is documented, and clients compute it too: spelt out by hand.
        let mut bytes = b"cellwright version 1\n".to_vec();
        for (path, contents) in [("a", y), ("b", x)] {
            bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
            bytes.extend(path.as_bytes());
            bytes.extend(contents.as_bytes());
        }
        assert_eq!(digest, Digest::of(&bytes));
    }
}
