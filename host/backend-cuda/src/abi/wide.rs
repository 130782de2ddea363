//! The kernels of products by warpgroups, as `kernels/abi.h` lists them.

/// How a product by warpgroups divides its sums; all take [`WideArguments`](super::WideArguments).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WideTile {
    pub(crate) name: &'static str,
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    /// Slabs that a block has on their way at once.
    stages: u32,
}

impl WideTile {
    const fn new(name: &'static str, (rows, columns): (u32, u32), stages: u32) -> Self {
        Self { name, rows, columns, stages }
    }

    /// Of a block: one warpgroup for 64 rows, and one that feeds them.
    pub(crate) const fn threads(&self) -> u32 {
        2 * self.rows + 128
    }

    /// Shared memory of a block.
    pub(crate) const fn shared_bytes(&self) -> u32 {
        self.stages * (self.rows + self.columns) * WIDE_SLAB * size_of::<u16>() as u32
    }

    /// Tiles of so many rows and columns.
    pub(crate) const fn tiles(&self, rows: u32, n: u32) -> u32 {
        rows.div_ceil(self.rows) * n.div_ceil(self.columns)
    }
}

/// Rows of a weight that warpgroups multiply at once.
pub(crate) const WIDE_SLAB: u32 = 64;

/// The kernels of products by warpgroups whose names begin so.
macro_rules! wide_tiles {
    ($($(#[$doc:meta])* $all:ident, $best:ident = $prefix:literal, $best_prefix:literal;)*) => {$(
        $(#[$doc])*
        pub(crate) const $all: [WideTile; 4] = [
            WideTile::new(concat!($prefix, "_64x64"), (64, 64), 12),
            WideTile::new(concat!($prefix, "_128x64"), (128, 64), 8),
            WideTile::new(concat!($prefix, "_128x128"), (128, 128), 6),
            WideTile::new(concat!($prefix, "_128x256"), (128, 256), 4),
        ];
        /// Those that keep the best few sums of each row.
        pub(crate) const $best: [WideTile; 4] = [
            WideTile::new(concat!($best_prefix, "_64x64"), (64, 64), 12),
            WideTile::new(concat!($best_prefix, "_128x64"), (128, 64), 8),
            WideTile::new(concat!($best_prefix, "_128x128"), (128, 128), 6),
            WideTile::new(concat!($best_prefix, "_128x256"), (128, 256), 4),
        ];
    )*};
}

wide_tiles! {
    /// In bf16.
    WIDE_BF16, WIDE_BEST_BF16 = "wide_bf16", "wide_best_bf16";
    /// In f16.
    WIDE_F16, WIDE_BEST_F16 = "wide_f16", "wide_best_f16";
}
