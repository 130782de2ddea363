//! Inputs that see several rows at each step. Convolution over time is a product over a fixed number
//! of them. Attention and pooling take any number, by a ragged input.
//!
//! In a session, rows of the chain that a chain continues stand before its row 0. Before a tensor's
//! row 0 stand those of earlier tensors of the same name, as far as they are kept.

use crate::abi::cellwright::plugin::types::{Affine, OutputRef, Rows, Source, Span, SpanOf};
use crate::request::Sequence;

/// More rows than any span has.
const ALL: u32 = 1 << 31;
/// Before the first row, wherever that is.
const FIRST: Affine = Affine { first: -(1 << 31), stride: 0, from_end: false };

const fn span(of: SpanOf, at: Affine, count: Option<u32>) -> Span {
    Span { of, at, every: 1, count }
}

fn spans(of: SpanOf, at: Affine, count: Option<u32>) -> Source {
    Source::Many(vec![span(of, at, count)])
}

/// Rows up to the one that is `behind` rows before a step's own, at most so many.
fn up_to(of: SpanOf, behind: u32, count: u32) -> Source {
    let first = -i64::from(behind) - i64::from(count) + 1;
    spans(of, Affine { first, stride: 1, from_end: false }, Some(count))
}

impl Source {
    /// For a ragged input: the rows of these spans, one behind the other.
    ///
    /// # Panics
    /// One of them is no span.
    #[must_use]
    pub fn joined(sources: impl IntoIterator<Item = Self>) -> Self {
        let spans = sources.into_iter().flat_map(|source| match source {
            Self::Many(spans) => spans,
            _ => panic!("only spans can be joined"),
        });
        Self::Many(spans.collect())
    }
}

/// Sources of a ragged input, of an output or of a request's tensor.
macro_rules! ragged {
    ($($type:ty, $of:expr;)+) => {
        $(impl $type {
            /// For a ragged input: every step sees all rows, those before row 0 too. Not of the chain that is
            /// being built.
            #[must_use]
            pub fn all(self) -> Source {
                spans($of(self), FIRST, None)
            }

            /// For a ragged input: step t sees all rows up to t. In the chain that is being built, the output
            /// must be of an earlier stage.
            #[must_use]
            pub fn so_far(self) -> Source {
                up_to($of(self), 0, ALL)
            }

            /// For a ragged input: step t sees all rows up to t − 1.
            #[must_use]
            pub fn earlier(self) -> Source {
                up_to($of(self), 1, ALL)
            }

            /// For a ragged input: step t sees at most `count` rows, up to row t.
            #[must_use]
            pub fn latest(self, count: u32) -> Source {
                up_to($of(self), 0, count)
            }
        })+
    };
}

ragged! {
    OutputRef, SpanOf::Chain;
    Sequence, |sequence: Self| SpanOf::Tensor(sequence.tensor);
}

/// `count` rows that a step sees at once, for an input `[count, …row]`. Rows beyond either end are
/// zeros.
///
/// By default the last row is the step's own, as in a causal convolution. PyTorch's
/// `Conv1d(kernel_size=k, stride=s, padding=p, dilation=d)` is a product over
/// `.window(k).every(d).stride(s).before(p)`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a window is an input once it is a source"]
pub struct Window {
    of: SpanOf,
    count: u32,
    every: u32,
    stride: u32,
    before: Option<u32>,
}

impl Window {
    pub(crate) const fn new(of: SpanOf, count: u32) -> Self {
        Self { of, count, every: 1, stride: 1, before: None }
    }

    /// Its rows are so far apart (dilation).
    pub const fn every(self, every: u32) -> Self {
        Self { every, ..self }
    }

    /// From step to step it moves on by so many rows.
    pub const fn stride(self, stride: u32) -> Self {
        Self { stride, ..self }
    }

    /// At step 0 it begins so many rows before the first (padding).
    pub const fn before(self, before: u32) -> Self {
        Self { before: Some(before), ..self }
    }

    /// The source of an input.
    ///
    /// # Panics
    /// It moves on by 2^31 rows or more.
    #[must_use]
    pub fn source(self) -> Source {
        let before = self.before.map_or_else(|| i64::from(self.every) * (i64::from(self.count) - 1), i64::from);
        let stride = i32::try_from(self.stride).expect("a window moves on by fewer than 2^31 rows");
        let at = Affine { first: -before, stride, from_end: false };
        Source::Many(vec![Span { of: self.of, at, every: self.every, count: Some(self.count) }])
    }
}

/// Frames of a signal: step t takes `width` elements of a request's tensor from element `t · hop` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frames {
    /// The tensor's number in the request.
    pub tensor: u32,
    /// From one frame to the next.
    pub hop: u32,
    /// Number of whole frames in the signal: at least one.
    pub count: u32,
}

impl Frames {
    /// Step t takes frame t.
    #[must_use]
    pub fn forward(self) -> Source {
        self.before(0)
    }

    /// Step t takes a frame that begins so many elements before frame t: padding, or in a session what
    /// the tensors before have left over. Elements before and behind the signal are zeros.
    ///
    /// # Panics
    /// The hop is 2^31 or more.
    #[must_use]
    pub fn before(self, elements: u32) -> Source {
        let stride = i32::try_from(self.hop).expect("a hop is less than 2^31");
        Source::Frames(Rows { tensor: self.tensor, at: Affine { first: -i64::from(elements), stride, from_end: false } })
    }
}

impl OutputRef {
    /// Step t sees `count` steps of it, up to step t.
    pub const fn window(self, count: u32) -> Window {
        Window::new(SpanOf::Chain(self), count)
    }
}
