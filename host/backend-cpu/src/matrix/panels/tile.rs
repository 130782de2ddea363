//! The tile itself, written once for all instruction sets that have fused multiply-adds and masks.

/// What the sums of a tile begin with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    /// What stands where they are put down.
    Result,
    /// That of these columns.
    Bias(*const f32),
    Zeros,
    /// What stands in each of these rows, so many floats behind its first.
    Rows(*const *const f32, usize),
}

/// What one tile computes: `rows × vectors` sums over a piece of k, begun or taken up where they were put down, and put down in the result.
#[derive(Debug)]
pub(super) struct Call {
    /// The first row's left-hand side; rows are `stride` floats apart, or where pointers say if those are not null. The piece begins so many floats into them.
    pub(super) x: *const f32,
    pub(super) stride: usize,
    pub(super) pointers: *const *const f32,
    pub(super) begin: usize,
    /// The panel at the piece's first k.
    pub(super) w: *const f32,
    pub(super) depth: usize,
    /// Weights to be brought near: so many lines, evenly over the piece.
    pub(super) ahead: *const f32,
    pub(super) ahead_lines: usize,
    /// Of a single tile: when so many values of k are left, it goes on to ask for what lies there.
    pub(super) turn: usize,
    pub(super) then: *const f32,
    pub(super) start: Start,
    pub(super) y: *mut f32,
    pub(super) y_stride: usize,
    /// Where the tile that comes next puts its sums, and which rows they begin with, to be brought near.
    pub(super) next_y: *const f32,
    pub(super) next_start: Start,
    /// Columns that the result has, and rows that sums begin with; weights and bias are there for whole vectors.
    pub(super) columns: usize,
}

/// # Safety
/// The processor has the tile's instruction set. Left-hand sides, weights and what sums start with are readable, the result's rows writable and nobody else's.
/// What is brought near need not be there; of rows that are brought near there is a pointer for as many as this tile has.
pub(super) type TileFn = unsafe fn(&Call);

/// How often a tile asks for weights in two values of k: as often as its share of the lines takes where there are six tiles or more, three, two, one.
pub(super) const ASKING: [usize; 4] = [1, 2, 4, 6];
/// That of a single tile. What it asks for it uses soon, and wants in the nearest cache; other tiles ask for a whole piece, which only the second has room for.
pub(super) const ALONE: usize = ASKING[3];

/// The same number, of which the compiler knows nothing. Through rows whose distances it knows it goes one by one, with an addition for each, and additions
/// take turns with multiply-adds.
#[inline(always)]
pub(super) fn apart(mut number: usize) -> usize {
    // SAFETY: no instruction at all.
    unsafe { std::arch::asm!("/* {0} */", inout(reg) number, options(pure, nomem, nostack, preserves_flags)) };
    number
}

/// Makes `tile::<ROWS, VECTORS>` and its table for an instruction set. `mask(columns)` gives the lanes of a vector that the result has,
/// `add_row(x, columns, sums)` adds the products of a left-hand value with vectors of columns.
macro_rules! tiles {
    (
        feature $feature:literal, lanes $lanes:literal, height $height:literal,
        zero $zero:expr, load $load:path, add_row $add_row:path, mask $mask:path, load_masked $load_masked:path, store_masked $store_masked:path,
        rows [$($rows:literal)*]
    ) => {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

        use super::tile::{ALONE, ASKING, Call, Start, TileFn, apart};
        use super::{LINE, VECTORS};

        /// Rows of a tile at most.
        pub(super) const HEIGHT: usize = $height;
        const LANES: usize = $lanes;
        /// Values of k that are worked on before the loop goes round.
        const STRIDE: usize = 4;

        /// By rows and by vectors, from one on, and by how often they ask.
        pub(super) const TILES: [[[TileFn; ASKING.len()]; VECTORS]; HEIGHT] = [$([asking::<$rows, 1>(), asking::<$rows, 2>(), asking::<$rows, 3>()]),*];

        const fn asking<const ROWS: usize, const PANEL: usize>() -> [TileFn; ASKING.len()] {
            [tile::<ROWS, PANEL, { ASKING[0] }>, tile::<ROWS, PANEL, { ASKING[1] }>, tile::<ROWS, PANEL, { ASKING[2] }>, tile::<ROWS, PANEL, { ASKING[3] }>]
        }

        /// # Safety
        /// As for [`TileFn`].
        // Loops over constant ranges unroll, and the sums stay in registers; iterators do not.
        #[target_feature(enable = $feature)]
        unsafe fn tile<const ROWS: usize, const PANEL: usize, const ASKS: usize>(call: &Call) {
            let mut masks = [$mask(0); PANEL];
            for v in 0..PANEL {
                masks[v] = $mask(call.columns.saturating_sub(v * LANES).min(LANES));
            }
            let at = |row: usize, vector: usize| call.y.wrapping_add(row.wrapping_mul(call.y_stride).wrapping_add(vector * LANES));
            for r in 0..ROWS {
                for v in 0..PANEL {
                    let y = call.next_y.wrapping_add(r.wrapping_mul(call.y_stride).wrapping_add(v * LANES));
                    _mm_prefetch::<_MM_HINT_T0>(y.cast());
                }
            }
            if let Start::Rows(starts, column) = call.next_start {
                for r in 0..ROWS {
                    // SAFETY: there is a pointer for each row.
                    let start = unsafe { *starts.wrapping_add(r) }.wrapping_add(column);
                    for v in 0..PANEL {
                        _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(v * LANES).cast());
                    }
                }
            }
            let mut sums = [[$zero; PANEL]; ROWS];
            for v in 0..PANEL {
                for r in 0..ROWS {
                    // SAFETY: the result has this row, and so has what it begins with; masks end at its last column; the bias has whole vectors.
                    sums[r][v] = unsafe {
                        match call.start {
                            Start::Result => $load_masked(at(r, v), masks[v]),
                            Start::Zeros => $zero,
                            Start::Bias(bias) => $load(bias.wrapping_add(v * LANES)),
                            Start::Rows(starts, column) => {
                                $load_masked((*starts.wrapping_add(r)).wrapping_add(column + v * LANES), masks[v])
                            }
                        }
                    };
                }
            }
            // Where the first row is, and bytes from it to each. Addresses: rows that are pointed to need not be of one piece of memory.
            let mut rows = [0; ROWS];
            let mut x = call.x.expose_provenance();
            if call.pointers.is_null() {
                for r in 0..ROWS {
                    rows[r] = apart(r.wrapping_mul(call.stride * size_of::<f32>()));
                }
            } else {
                // SAFETY: there is a pointer for each row.
                x = unsafe { *call.pointers }.expose_provenance();
                for r in 0..ROWS {
                    // SAFETY: as above.
                    rows[r] = apart(unsafe { *call.pointers.wrapping_add(r) }.expose_provenance().wrapping_sub(x));
                }
            }
            x = x.wrapping_add(call.begin * size_of::<f32>());
            let (mut w, mut ahead) = (call.w, call.ahead);
            // Lines evenly over the piece, or nearly: all at once would keep what is needed now from coming.
            let ahead_step = (call.ahead_lines * LINE).div_ceil((call.depth / 2 * ASKS).max(1));
            let step = |x: usize, w: *const f32, sums: &mut [[_; PANEL]; ROWS]| {
                // SAFETY: the piece has this row of the panel, and so many rows of left-hand sides this k.
                unsafe {
                    let mut columns = [$zero; PANEL];
                    for v in 0..PANEL {
                        columns[v] = $load(w.wrapping_add(v * LANES));
                    }
                    for r in 0..ROWS {
                        $add_row(std::ptr::with_exposed_provenance(x.wrapping_add(rows[r])), &columns, &mut sums[r]);
                    }
                }
            };
            let (mut left, mut has_turned) = (call.depth, false);
            while left >= STRIDE {
                if ASKS == ALONE && !has_turned && left <= call.turn {
                    (ahead, has_turned) = (call.then, true);
                }
                for k in 0..STRIDE {
                    // Of two k the first asks the more often.
                    for _ in 0..if k % 2 == 0 { ASKS.div_ceil(2) } else { ASKS / 2 } {
                        // Asking for what is not there does nothing.
                        if ASKS == ALONE {
                            _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                        } else {
                            _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
                        }
                        ahead = ahead.wrapping_byte_add(ahead_step);
                    }
                    step(x.wrapping_add(k * size_of::<f32>()), w.wrapping_add(k * PANEL * LANES), &mut sums);
                }
                x = x.wrapping_add(STRIDE * size_of::<f32>());
                w = w.wrapping_add(STRIDE * PANEL * LANES);
                left -= STRIDE;
            }
            for _ in 0..left {
                step(x, w, &mut sums);
                x = x.wrapping_add(size_of::<f32>());
                w = w.wrapping_add(PANEL * LANES);
            }
            for r in 0..ROWS {
                for v in 0..PANEL {
                    // SAFETY: as above.
                    unsafe { $store_masked(at(r, v), masks[v], sums[r][v]) };
                }
            }
        }
    };
}
pub(super) use tiles;
