//! One tenant, or a client without a key, does what it can to have everything for itself. A neighbour gets his answers all the same.
//!
//! Each attack runs in short form here. `tests/run soak` has the long forms, with the bounds of `host/README.md`.

mod connections;
mod devices;
mod keys;
mod loads;
mod messages;
mod plugins;
mod weights;

/// Requests of the neighbour, of which none may fail, and the share of them that is held to the bound of times.
const SHORT: (usize, f64) = (100, 0.9);
/// The same of the long form, of which one in a thousand may fail.
const LONG: (usize, f64) = (2000, 0.99);

/// An attack in both forms.
macro_rules! attacks {
    ($($(#[$doc:meta])* $name:ident = $attack:expr;)*) => {
        $($(#[$doc])* #[test]
        fn $name() {
            $attack(crate::attacks::SHORT);
        })*

        mod long {
            use super::*;

            $(#[test]
            #[ignore = "takes minutes; tests/run soak has it"]
            fn $name() {
                $attack(crate::attacks::LONG);
            })*
        }
    };
}
pub(crate) use attacks;
