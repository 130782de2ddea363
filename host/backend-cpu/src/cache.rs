//! The part of the last cache that weights may count on: weights that are read again and again.
//!
//! A plan whose weights fit is computed by rows, with all weights read by every thread
//! (`plan::run`). Weights that do not fit come from memory each time.

use std::path::Path;
use std::sync::LazyLock;

/// Of the last cache, so many eighths are weights at most: whatever else a step and other threads touch passes it too.
const EIGHTHS: usize = 5;
/// More is taken to come from memory whatever the system says: in a virtual machine it may tell of a cache that others use as well.
const MOST: usize = 20 << 20;
/// What is taken to be there where the system says nothing.
const UNKNOWN: usize = 8 << 20;

/// Whether the last cache mostly keeps so many bytes of weights.
pub(crate) fn keeps(bytes: usize) -> bool {
    static LIMIT: LazyLock<usize> = LazyLock::new(|| limit(last_cache(Path::new("/sys/devices/system/cpu/cpu0/cache")).unwrap_or(UNKNOWN)));
    bytes <= *LIMIT
}

fn limit(cache: usize) -> usize {
    (cache / 8 * EIGHTHS).min(MOST)
}

/// Bytes of the largest of a processor's caches, which a folder describes as Linux does.
fn last_cache(folder: &Path) -> Option<usize> {
    let caches = std::fs::read_dir(folder).ok()?.flatten();
    caches.filter_map(|cache| size(&std::fs::read_to_string(cache.path().join("size")).ok()?)).max()
}

/// Bytes as the system writes them: `32768K`.
fn size(text: &str) -> Option<usize> {
    text.trim().strip_suffix('K')?.parse::<usize>().ok()?.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_cache_is_the_last() {
        let folder = tempfile::tempdir().unwrap();
        for (index, text) in ["48K\n", "32K\n", "1024K\n", "32768K\n", "none\n"].into_iter().enumerate() {
            let cache = folder.path().join(format!("index{index}"));
            std::fs::create_dir(&cache).unwrap();
            std::fs::write(cache.join("size"), text).unwrap();
        }
        std::fs::write(folder.path().join("uevent"), "").unwrap();
        assert_eq!(last_cache(folder.path()), Some(32 << 20));
        assert_eq!(last_cache(&folder.path().join("index9")), None);
    }

    #[test]
    fn a_part_of_it_is_weights() {
        assert_eq!([8 << 20, 32 << 20, 256 << 20].map(limit), [5 << 20, 20 << 20, 20 << 20]);
    }
}
