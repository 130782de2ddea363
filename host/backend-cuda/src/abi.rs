//! What kernels take and leave, as `kernels/abi*.h` has it: field by field the same, which a test compares with the kernels' own sizes.

mod wide;

use crate::driver::DeviceAddress;
pub(crate) use wide::{WIDE_BEST_BF16, WIDE_BEST_F16, WIDE_BF16, WIDE_F16, WIDE_SLAB, WideTile};

/// Structures that are bytes through and through.
///
/// # Safety
/// `repr(C)`, without padding that is not written out, of fields that any bytes are valid for.
pub(crate) unsafe trait Plain: Copy {}

/// What a kernel takes, by value.
pub(crate) trait Arguments: Plain {
    /// Its name in `kernels/`.
    const KERNEL: &'static str;
}

/// Its bytes.
pub(crate) fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: it is bytes through and through.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Their bytes, one after the other.
pub(crate) fn bytes_of_all<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: they are bytes through and through.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// A structure that lies there, wherever that is.
pub(crate) fn read<T: Plain>(bytes: &[u8]) -> T {
    assert!(bytes.len() >= size_of::<T>(), "a whole structure");
    // SAFETY: there are as many bytes, and any are valid for it.
    unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) }
}

macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type,)*
        }

        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*, "all padding is written out");

        // SAFETY: `repr(C)` of numbers, whose sizes add up to its own.
        unsafe impl Plain for $name {}
    )*

        /// Every structure: its name, and each field's name, where it begins, and how many bytes it has.
        #[cfg(test)]
        fn structures() -> Vec<(&'static str, Vec<(&'static str, usize, usize)>)> {
            vec![$((stringify!($name), vec![$((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$type>())),*])),*]
        }
    };
}

/// Rows, and columns, of a box of a matrix, as in `abi.h`.
pub(crate) const TENSOR_BOX: u32 = 64;
/// As `NOWHERE` in `abi_transfer.h`.
pub(crate) const NOWHERE: u32 = u32::MAX;
/// The bit of `PIECES_BIT` there.
pub(crate) const PIECES: u64 = 1 << 63;
/// Most terms of a product.
pub(crate) const PRODUCT_TERMS: usize = 8;
/// Axes of a group's index space.
pub(crate) const GROUP_AXES: usize = 8;
/// Operands that an instruction of a group reads.
pub(crate) const GROUP_SOURCES: usize = 3;
/// And writes.
pub(crate) const GROUP_RESULTS: usize = 2;
/// Operands of what sees whole spans.
pub(crate) const SPAN_OPERANDS: usize = 2;
/// Its results.
pub(crate) const SPAN_RESULTS: usize = 2;

plain! {
    /// As in `abi.h`.
    ProductTerm { x: u64, weights: u64, x_stride: u32, k: u32 }
    /// As in `abi.h`.
    ProductArguments {
        terms: [ProductTerm; PRODUCT_TERMS], begin: u64, bias: u64, y: u64, rows_at: u64, begin_stride: u32, y_stride: u32, term_count: u32, rows: u32, n: u32,
        padding: u32,
    }
    /// As in `abi_best.h`.
    ProductBestArguments { product: ProductArguments, k: u32, flags: u32 }
    /// As in `abi_best.h`.
    WideArguments { x: [TensorMap; PRODUCT_TERMS], best: ProductBestArguments }
    /// As in `abi_best.h`.
    BestArguments { candidates: u64, values: u64, positions: u64, stride: u32, panels: u32, k: u32, flags: u32, rows_at: u64 }
    /// A matrix of which kernels copy boxes of rows; what it says is the driver's.
    TensorMap { words: [u64; 16] }
    /// As in `abi.h`.
    LstmRows {
        h_next: u64, c: u64, begin: u64, h_out: u64, c_out: u64, h_exact: u64, first: u32, rows: u32, sequence: u32, padding: u32,
    }
    /// As in `abi.h`.
    LstmStepArguments {
        x: TensorMap, h: TensorMap, rows: LstmRows, weights: u64, bias: u64, inputs: u32, units: u32, columns: [u32; 4], rows_at: u64, z_takes: u32,
        number: u32, padding: [u32; 2],
    }
    /// As in `abi.h`.
    LstmQueueArguments {
        x: TensorMap, h: TensorMap, steps: u64, counter: u64, signal: u64, weights: u64, bias: u64, step_count: u32, inputs: u32, units: u32,
        z_takes: u32, columns: [u32; 4], padding: [u32; 14],
    }
    /// As in `abi.h`.
    LstmListArguments {
        frame: u64, entries: u64, lists: u64, counter: u64, table: u64, table_rows: u64, table_stride: u32, token: u32, token_bytes: u32,
        is_f16: u32, stride: u32, own: u32, units: u32, h: u32, c: u32, begin: u32, h_exact: u32,
        c_out: u32, h_from: u32, h_out: u32, head: u64,
    }
    /// As in `abi.h`.
    TreeStepArguments {
        left: TensorMap, right: TensorMap, rows: LstmRows, c_right: u64, weights: u64, bias: u64, units: u32, padding: u32, columns: [u32; 6], rows_at: u64,
    }
    /// As in `abi.h`.
    TreeListArguments {
        frame: u64, lists: u64, stride: u32, own: u32, units: u32, begin: u32, h: [u32; 2], c: [u32; 2], h_from: [u32; 2], h_exact: u32, c_out: u32,
        is_f16: u32, padding: u32, head: u64,
    }
    /// The beginning of each row of a frame.
    RowRecord { live: u32, refused: u32, index: i64, table_rows: u64, padding: u64 }
    /// Whose step a row is.
    RowEntry { node: u64, own: u32, followed: u32, step: u32, stop: u32, before: u32, later: u32, after: u32, padding: u32 }
    /// An input in a row of the frame.
    Port { place: u32, bytes: u32 }
    /// An output in a row of the frame, and in a node.
    Outlet { place: u32, bytes: u32, node_offset: u32, padding: u32 }
    /// What became of a row.
    RowStatus { status: u32, why: u32, index: i64, table_rows: u64 }
    /// As in `abi_transfer.h`.
    BatchHead {
        rows: u32, padding: u32, addresses: u64, entries: u64, executed: u64, deliveries: u64, delivered: u64, statuses: u64, steps: u64,
    }
    /// As in `abi_transfer.h`.
    GatherArguments { frame: u64, ports: u64, head: u64, stride: u32, port_count: u32, own: BatchHead }
    /// As in `abi_transfer.h`.
    FinishArguments { frame: u64, outlets: u64, head: u64, stride: u32, outlet_count: u32, is_left: u32, padding: u32, own: BatchHead }
    /// As in `abi_transfer.h`.
    LstmGatherArguments {
        frame: u64, head: u64, lists: u64, counter: u64, table: u64, table_rows: u64, table_stride: u32, token_bytes: u32, port_count: u32, token_port: u32,
        h_port: u32, c_port: u32, h_node: u32, c_node: u32, stride: u32, units: u32, is_f16: u32, h_exact: u32, c_out: u32, h_from: u32,
        own: BatchHead,
    }
    /// A word and what it becomes.
    WordEntry { word: u32, value: u32 }
    /// As in `abi_transfer.h`.
    WordsArguments { entries: u64, words: u64, count: u32, padding: u32 }
    /// As in `abi_group.h`.
    GroupOperand { at: u64, strides: [i32; GROUP_AXES], kind: u32, is_address: u32 }
    /// As in `abi_group.h`.
    GroupInstruction {
        op: u32, flags: u32, axes: u32, outer_axes: u32, extents: [u32; GROUP_AXES], outer: u32, inner: u32, sources: u32, results: u32, k: u32,
        epsilon: f32, table_rows: u64, source: [GroupOperand; GROUP_SOURCES], result: [GroupOperand; GROUP_RESULTS],
    }
    /// As in `abi_group.h`.
    GroupArguments { frame: u64, instructions: u64, stride: u32, count: u32, rows_at: u64 }
    /// As in `abi_group.h`.
    CompiledGroupArguments { frame: u64, blobs: u64, stride: u32, padding: u32, rows_at: u64 }
    /// Rows at equal distances.
    SpanRun { at: u64, stride: u64, rows: u32, padding: u32 }
    /// An operand of a node.
    SpanRows { runs: u64, rows: u64 }
    /// As in `abi_spans.h`.
    SpanArguments {
        operands: [u64; SPAN_OPERANDS], results: [u64; SPAN_RESULTS], statuses: u64, strides: [u32; SPAN_RESULTS], op: u32, flags: u32, width: u32,
        columns: u32, k: u32, padding: u32,
    }
    /// As in `abi_spans.h`.
    AttentionArguments {
        queries: u64, keys: u64, values: u64, masks: u64, results: u64, query_count: u32, heads: u32, key_heads: u32, depth: u32, size: u32, mask: u32,
        mask_heads: u32, mask_queries: u32, scale: f32, softcap: f32,
    }
    /// As in `abi_spans.h`.
    SpanCheck { statuses: u64, offsets: u64 }
    /// As in `abi_spans.h`.
    SpanCheckArguments { frame: u64, checks: u64, stride: u32, count: u32 }
}

// SAFETY: a number.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}

macro_rules! kernels {
    ($($name:ident = $kernel:literal),*) => {$(
        impl Arguments for $name {
            const KERNEL: &'static str = $kernel;
        }
    )*};
}

kernels! {
    GatherArguments = "gather", FinishArguments = "finish", WordsArguments = "begin_words", GroupArguments = "group",
    CompiledGroupArguments = "compiled_group", BestArguments = "best_of_panels", LstmListArguments = "lstm_rows", LstmGatherArguments = "lstm_gather",
    TreeListArguments = "tree_rows", SpanArguments = "span", AttentionArguments = "attention", SpanCheckArguments = "span_check"
}

/// The kernels of a product, by the rows of their tiles; all take [`ProductArguments`].
pub(crate) const PRODUCTS_F32: [&str; 3] = ["product_f32_16", "product_f32_64", "product_f32_128"];
/// The same in tf32.
pub(crate) const PRODUCTS_TF32: [&str; 3] = ["product_tf32_16", "product_tf32_64", "product_tf32_128"];
/// The same in bf16.
pub(crate) const PRODUCTS_BF16: [&str; 3] = ["product_bf16_16", "product_bf16_64", "product_bf16_128"];
/// The same in f16.
pub(crate) const PRODUCTS_F16: [&str; 3] = ["product_f16_16", "product_f16_64", "product_f16_128"];
/// Those that keep the best few sums of each row; all take [`ProductBestArguments`].
pub(crate) const BEST_F32: [&str; 3] = ["product_best_f32_16", "product_best_f32_64", "product_best_f32_128"];
/// The same in tf32.
pub(crate) const BEST_TF32: [&str; 3] = ["product_best_tf32_16", "product_best_tf32_64", "product_best_tf32_128"];
/// The same in bf16.
pub(crate) const BEST_BF16: [&str; 3] = ["product_best_bf16_16", "product_best_bf16_64", "product_best_bf16_128"];
/// The same in f16.
pub(crate) const BEST_F16: [&str; 3] = ["product_best_f16_16", "product_best_f16_64", "product_best_f16_128"];
/// Most that these keep of a panel.
pub(crate) const BEST_MOST: u32 = 16;
/// Bytes of each that they keep.
pub(crate) const CANDIDATE_BYTES: usize = 8;
/// Threads of a block that puts those of a row in order.
pub(crate) const BEST_THREADS: u32 = 128;
/// The rows of their tiles.
pub(crate) const PRODUCT_TILES: [u32; 3] = [16, 64, 128];
/// The columns of their tiles.
pub(crate) const PRODUCT_COLUMNS: u32 = 64;
/// Threads of their blocks.
pub(crate) const PRODUCT_THREADS: u32 = 128;
/// Slabs that they have on their way at once.
const PRODUCT_STAGES: u32 = 4;

/// Shared memory that a product's block is given, by the rows of its tile and the bytes of a row of a slab.
pub(crate) const fn product_shared(tile: u32, is_of_halves: bool) -> u32 {
    PRODUCT_STAGES * (tile * if is_of_halves { 128 } else { 64 } + 4096)
}

/// How a kernel of the steps of an LSTM or a GRU divides them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GateTile {
    pub(crate) name: &'static str,
    /// Columns of the weights for each unit.
    pub(crate) gates: u32,
    /// Of a tile.
    pub(crate) rows: u32,
    /// Of a tile.
    pub(crate) units: u32,
    /// Of a block.
    pub(crate) threads: u32,
    /// Slabs for which a block has room in shared memory.
    slabs: u32,
    /// Whether a block's weights stay in its shared memory: all of its tiles have the same units then.
    pub(crate) is_resident: bool,
}

impl GateTile {
    const fn new((name, gates): (&'static str, u32), (rows, units): (u32, u32), slabs: u32) -> Self {
        // One warpgroup for 64 rows, and one that feeds them.
        Self { name, gates, rows, units, threads: 2 * rows + 128, slabs, is_resident: false }
    }

    const fn resident(of: (&'static str, u32), tile: (u32, u32), slabs: u32) -> Self {
        Self { is_resident: true, ..Self::new(of, tile, slabs) }
    }

    /// Columns of the weights that a tile has.
    pub(crate) const fn columns(&self) -> u32 {
        self.gates * self.units
    }

    /// Shared memory of a block for a state of so many units.
    pub(crate) const fn shared_bytes(&self, units: u32) -> u32 {
        let weights = if self.is_resident { units.div_ceil(LSTM_SLAB) } else { self.slabs };
        (self.slabs * self.rows + weights * self.columns()) * LSTM_SLAB_BYTES
    }

    /// Tiles of units.
    pub(crate) const fn across(&self, units: u32) -> u32 {
        units.div_ceil(self.units)
    }

    /// Tiles in all.
    pub(crate) const fn tiles(&self, rows: u32, units: u32) -> u32 {
        rows.div_ceil(self.rows) * self.across(units)
    }
}

/// Rows of a weight that are multiplied at once,
pub(crate) const LSTM_SLAB: u32 = 64;
/// and what a column of them takes.
const LSTM_SLAB_BYTES: u32 = LSTM_SLAB * size_of::<u16>() as u32;

/// The kernels of a cell's steps whose names begin so, by the cell's gates.
macro_rules! gate_tiles {
    ($($(#[$doc:meta])* $steps:ident, $queues:ident = $prefix:literal, $gates:literal;)*) => {$(
        $(#[$doc])*
        pub(crate) const $steps: [GateTile; 4] = [
            GateTile::new((concat!($prefix, "_step_64x8"), $gates), (64, 8), 16),
            GateTile::new((concat!($prefix, "_step_64x16"), $gates), (64, 16), 12),
            GateTile::new((concat!($prefix, "_step_64x32"), $gates), (64, 32), 8),
            GateTile::new((concat!($prefix, "_step_128x32"), $gates), (128, 32), 6),
        ];
        /// Several of these steps; all take [`LstmQueueArguments`], and are launched cooperatively.
        pub(crate) const $queues: [GateTile; 4] = [
            GateTile::resident((concat!($prefix, "_resident_64x8"), $gates), (64, 8), 8),
            GateTile::resident((concat!($prefix, "_resident_64x16"), $gates), (64, 16), 8),
            GateTile::new((concat!($prefix, "_queue_64x32"), $gates), (64, 32), 8),
            GateTile::new((concat!($prefix, "_queue_128x32"), $gates), (128, 32), 6),
        ];
    )*};
}

gate_tiles! {
    /// One step of an LSTM in bf16; all take [`LstmStepArguments`].
    LSTM_STEPS, LSTM_QUEUES = "lstm", 4;
    /// The same in f16.
    LSTM_F16_STEPS, LSTM_F16_QUEUES = "lstm_f16", 4;
    /// One step of a GRU in bf16; all take [`LstmStepArguments`].
    GRU_STEPS, GRU_QUEUES = "gru", 3;
    /// The same in f16.
    GRU_F16_STEPS, GRU_F16_QUEUES = "gru_f16", 3;
}

/// A node of a tree in bf16; all take [`TreeStepArguments`].
pub(crate) const TREE_STEPS: [GateTile; 4] = [
    GateTile::new(("tree_step_64x8", 5), (64, 8), 16),
    GateTile::new(("tree_step_64x16", 5), (64, 16), 12),
    GateTile::new(("tree_step_64x32", 5), (64, 32), 6),
    GateTile::new(("tree_step_128x32", 5), (128, 32), 5),
];
/// The same in f16.
pub(crate) const TREE_F16_STEPS: [GateTile; 4] = [
    GateTile::new(("tree_f16_step_64x8", 5), (64, 8), 16),
    GateTile::new(("tree_f16_step_64x16", 5), (64, 16), 12),
    GateTile::new(("tree_f16_step_64x32", 5), (64, 32), 6),
    GateTile::new(("tree_f16_step_128x32", 5), (128, 32), 5),
];
/// Lists that it reads.
pub(crate) const TREE_LISTS: usize = 5;
/// Lists that a step reads, which [`LstmRows`] names.
pub(crate) const LSTM_LISTS: usize = 6;

/// What becomes of a row: as in `abi_transfer.h`.
pub(crate) mod status {
    pub(crate) const SKIPPED: u32 = 0;
    pub(crate) const RAN: u32 = 1;
    pub(crate) const STOPPED: u32 = 2;
    pub(crate) const REFUSED: u32 = 3;
}

/// Why a row was refused: as in `abi_transfer.h`.
pub(crate) mod why {
    #[cfg(test)]
    pub(crate) const INDEX: u32 = 1;
    pub(crate) const SPAN_INDEX: u32 = 2;
    pub(crate) const TOO_FEW: u32 = 3;
}

/// Masks of scores: as in `abi_spans.h`.
pub(crate) mod mask {
    pub(crate) const NONE: u32 = 0;
    pub(crate) const FLOATS: u32 = 1;
    pub(crate) const TRUTHS: u32 = 2;
}

/// Flags of an instruction, or of what sees whole spans: as in `abi_group.h` and `abi_spans.h`.
pub(crate) mod flag {
    pub(crate) const BARRIER: u32 = 1;
    pub(crate) const SMALLEST: u32 = 2;
    pub(crate) const LAST: u32 = 4;
    pub(crate) const BY_WARP: u32 = 8;
    pub(crate) const BY_BLOCK: u32 = 16;
    pub(crate) const EXCLUSIVE: u32 = 32;
    pub(crate) const REVERSE: u32 = 64;
}

macro_rules! numbered {
    ($($name:ident = $number:literal),* $(,)?) => {
        $(pub(crate) const $name: u32 = $number;)*

        /// Every one by its name.
        #[cfg(test)]
        pub(crate) const ALL: &[(&str, u32)] = &[$((stringify!($name), $number)),*];
    };
}

/// Operations of a group: as in `abi_group.h`.
pub(crate) mod op {
    numbered! {
        COPY = 0, CAST = 1, NEG = 2, SIGMOID = 3, TANH = 4, RELU = 5, GELU = 6, GELU_TANH = 7, SILU = 8, EXP = 9, LOG = 10, SQRT = 11, NOT = 12,
        ADD = 13, SUB = 14, MUL = 15, DIV = 16, POW = 17, EQUAL = 18, GREATER = 19, LESS = 20, AND = 21, OR = 22, WHERE = 23, LOOKUP = 24,
        SOFTMAX = 32, LOG_SOFTMAX = 33, STANDARDIZE = 34, ROOT_MEAN_SQUARE = 35, SUM = 36, MEAN = 37, TOP = 38,
    }
}

/// Operations over whole spans: as in `abi_spans.h`.
pub(crate) mod span {
    numbered! {
        REPEAT = 0, GATHER = 1, SUM = 2, MEAN = 3, MAX = 4, SOFTMAX = 5, LOG_SOFTMAX = 6, CUM_SUM = 7, TOP = 8, MAT_MUL = 9, MIX = 10, COPY = 11,
    }
}

impl From<DeviceAddress> for u64 {
    fn from(address: DeviceAddress) -> Self {
        address.0
    }
}

#[cfg(test)]
mod tests;
