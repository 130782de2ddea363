//! The suite that every backend must pass, and the slow reference that it compares with.
//!
//! It checks each operation against 64-bit references, the cell families against PyTorch's vectors,
//! what becomes of denormal numbers, requests alone against the same requests under load bit for bit, and the promises of tasks and
//! slots. The suite panics with a sentence when a backend fails. A backend's test is one call of
//! [`run`], or calls of its parts to see which one fails. Only tests depend on this crate.

pub mod behaviour;
pub mod bodies;
pub mod cells;
pub mod denormals;
pub mod driver;
pub mod families;
pub mod hoisting;
pub mod invariance;
pub mod operators;
pub mod reference;
pub mod spans;
pub mod trees;

use cellwright_cell_graph::typed::Precision;

use cellwright_backend::Backend;

/// Makes a backend with an empty arena of at least [`ARENA_SLOTS`] slots.
pub type Make<'a> = dyn FnMut() -> Box<dyn Backend> + 'a;

/// Slots the suite needs.
pub const ARENA_SLOTS: u32 = 1 << 16;

/// How far a 32-bit result may be from the exact one: `absolute + relative · |exact|`.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Whatever the size of the result.
    pub absolute: f64,
    /// In proportion to it.
    pub relative: f64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Self { absolute: 2e-6, relative: 1e-5 }
    }
}

impl Tolerance {
    /// What products in tf32 may err from those in 32-bit floats: each operand is rounded by at most 2⁻¹¹ of itself, so each product of two by 2⁻¹⁰ of
    /// itself.
    pub const TF32: Self = Self { absolute: 1.0 / 1024.0, relative: 1.0 / 1024.0 };

    /// Wider by a factor.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self { absolute: self.absolute * factor, relative: self.relative * factor }
    }

    /// Whether a result is near enough: NaN is near NaN alone, an infinity near itself alone.
    #[must_use]
    pub fn accepts(self, exact: f64, got: f64) -> bool {
        if exact.is_nan() || got.is_nan() {
            return exact.is_nan() && got.is_nan();
        }
        // What overflows when it is rounded to 32 bits may also just not have.
        let rounded = f64::from(exact as f32);
        exact == got || rounded == got || (got.is_finite() && (exact - got).abs() <= self.absolute + self.relative * exact.abs())
    }
}

/// How much of the suite is run.
#[derive(Clone, Debug)]
pub struct Scope {
    /// At which precisions: a backend may lack one, and say so when a cell is loaded.
    pub precisions: Vec<Precision>,
    /// At which sizes of a batch a row must be what it is alone.
    pub sizes: Vec<usize>,
}

/// The largest batch that an engine runs if nothing else is said.
const LARGEST_BATCH: usize = 512;

impl Default for Scope {
    /// All of it.
    fn default() -> Self {
        Self { precisions: Precision::ALL.to_vec(), sizes: (1..=LARGEST_BATCH).collect() }
    }
}

/// Runs the whole suite.
///
/// # Panics
/// If the backend fails it.
pub fn run(make: &mut Make<'_>, tolerance: Tolerance) {
    run_within(make, tolerance, &Scope::default());
}

/// Runs so much of the suite.
///
/// # Panics
/// If the backend fails it.
pub fn run_within(make: &mut Make<'_>, tolerance: Tolerance, scope: &Scope) {
    operators::run(make, tolerance, scope);
    families::run(make, tolerance, scope);
    denormals::run(make, scope);
    behaviour::run(make);
    invariance::run(make, scope);
    hoisting::run(make, scope);
}
