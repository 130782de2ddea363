//! A request as a plugin sees it: structure first, contents only where the plugin asks for them.
//!
//! Checks that most plugins need are here, so that their refusals read alike. Rows of a tensor that go to a cell are named, never read.

use std::cell::OnceCell;

use crate::abi::cellwright::plugin::request;
use crate::abi::cellwright::plugin::types::{Affine, Datatype, Parameter, Refusal, Rows, Source, SpanOf, TensorSpec};
use crate::window::{Frames, Window};

/// Where a request's structure and contents come from: the host, or a test.
pub trait Incoming {
    /// Names, types and shapes of its tensors, numbered in this order.
    fn tensors(&self) -> Vec<TensorSpec>;
    /// The request's own parameters.
    fn parameters(&self) -> Vec<Parameter>;
    /// The elements of a tensor of any integer type, or BOOL. A UINT64 above the largest i64 ends the call, as the client's fault.
    fn ints(&self, tensor: u32) -> Vec<i64>;
    /// The elements of an FP32 tensor, and of no other type.
    fn floats(&self, tensor: u32) -> Vec<f32>;
    /// The elements of a BYTES tensor, as UTF-8.
    fn texts(&self, tensor: u32) -> Vec<String>;
}

/// The request of the call that is under way, as the host has it.
pub struct HostRequest;

impl Incoming for HostRequest {
    fn tensors(&self) -> Vec<TensorSpec> {
        request::tensors()
    }
    fn parameters(&self) -> Vec<Parameter> {
        request::parameters()
    }
    fn ints(&self, tensor: u32) -> Vec<i64> {
        request::ints(tensor)
    }
    fn floats(&self, tensor: u32) -> Vec<f32> {
        request::floats(tensor)
    }
    fn texts(&self, tensor: u32) -> Vec<String> {
        request::texts(tensor)
    }
}

/// A request.
pub struct Request<'a> {
    incoming: &'a dyn Incoming,
    tensors: OnceCell<Vec<TensorSpec>>,
    first: u32,
}

impl<'a> Request<'a> {
    /// Wraps what a call was given.
    #[must_use]
    pub fn new(incoming: &'a dyn Incoming) -> Self {
        Self::from_tensor(incoming, 0)
    }

    /// Wraps what a call was given of a session that has let go of its tensors before that number.
    pub(crate) const fn from_tensor(incoming: &'a dyn Incoming, first: u32) -> Self {
        Self { incoming, tensors: OnceCell::new(), first }
    }

    /// The number of its first tensor: 0 but for a session that has let go of some.
    pub(crate) const fn first(&self) -> u32 {
        self.first
    }

    /// The number that the next tensor of this session will have.
    pub fn end(&self) -> u32 {
        self.first + u32::try_from(self.tensors().len()).expect("a request has fewer than 2³² tensors")
    }

    /// Its tensors, in order.
    pub fn tensors(&self) -> &[TensorSpec] {
        self.tensors.get_or_init(|| self.incoming.tensors())
    }

    /// Its parameters.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        self.incoming.parameters()
    }

    /// The tensor of that name; in a session, the latest.
    ///
    /// # Errors
    /// The request has none.
    pub fn input(&self, name: &str) -> Result<Input<'_>, Refusal> {
        self.optional(name).ok_or_else(|| {
            let names: Vec<String> = self.tensors().iter().map(|spec| format!("`{}`", spec.name)).collect();
            let brought = if names.is_empty() { "none".into() } else { names.join(", ") };
            Refusal::InvalidInput(format!("input `{name}` is missing; the request brings {brought}"))
        })
    }

    /// The tensor of that name, if the request brings one; in a session, the latest.
    #[must_use]
    pub fn optional(&self, name: &str) -> Option<Input<'_>> {
        let (spec, tensor) = self.tensors().iter().zip(self.first..).filter(|(spec, _)| spec.name == name).last()?;
        Some(Input { request: self, tensor, spec })
    }
}

/// One tensor of a request.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    request: &'a Request<'a>,
    /// Its number in the request.
    pub tensor: u32,
    /// Its name, type and shape.
    pub spec: &'a TensorSpec,
}

impl Input<'_> {
    /// A sequence of at least one and at most `max` rows of that type and shape: `[T, …row]`.
    ///
    /// # Errors
    /// It has another type or shape, no rows, or too many.
    pub fn sequence(&self, datatype: Datatype, row: &[u32], max: u32) -> Result<Sequence, Refusal> {
        let fits = self.spec.datatype == datatype
            && self.spec.shape.len() == row.len() + 1
            && self.spec.shape[1..].iter().zip(row).all(|(have, want)| *have == i64::from(*want));
        if !fits {
            let wanted: Vec<i64> = [-1].into_iter().chain(row.iter().map(|extent| i64::from(*extent))).collect();
            return Err(self.wrong(datatype, &wanted));
        }
        let rows = self.spec.shape[0];
        if rows < 1 {
            return Err(self.refusal("is empty: the sequence needs at least one element"));
        }
        match u32::try_from(rows) {
            Ok(count) if count <= max => Ok(Sequence { tensor: self.tensor, count }),
            _ => Err(self.refusal(format!("has {rows} elements, and this model takes at most {max}"))),
        }
    }

    /// Cuts a signal `[N]` of that type into at most `max` frames of `width` elements. Frame t begins
    /// at element `t · hop`. Elements at the end that fill no frame are dropped.
    ///
    /// # Errors
    /// It has another type or shape, no frame, or too many.
    ///
    /// # Panics
    /// The hop is 0.
    pub fn frames(&self, datatype: Datatype, (width, hop): (u32, u32), max: u32) -> Result<Frames, Refusal> {
        assert!(hop > 0, "frames are at least one element apart");
        let [elements] = self.spec.shape[..] else { return Err(self.wrong(datatype, &[-1])) };
        if self.spec.datatype != datatype {
            return Err(self.wrong(datatype, &[-1]));
        }
        let count = match elements - i64::from(width) {
            behind if behind < 0 => return Err(self.refusal(format!("has {elements} elements, and a frame takes {width}"))),
            behind => behind / i64::from(hop) + 1,
        };
        match u32::try_from(count) {
            Ok(count) if count <= max => Ok(Frames { tensor: self.tensor, hop, count }),
            _ => Err(self.refusal(format!("has {count} frames, and this model takes at most {max}"))),
        }
    }

    /// The elements of an INT64 tensor.
    ///
    /// # Errors
    /// It has another type.
    pub fn ints(&self) -> Result<Vec<i64>, Refusal> {
        self.of_type(Datatype::Int64)?;
        Ok(self.request.incoming.ints(self.tensor))
    }

    /// The elements of an FP32 tensor.
    ///
    /// # Errors
    /// It has another type.
    pub fn floats(&self) -> Result<Vec<f32>, Refusal> {
        self.of_type(Datatype::Fp32)?;
        Ok(self.request.incoming.floats(self.tensor))
    }

    /// The elements of a BYTES tensor, as UTF-8.
    ///
    /// # Errors
    /// It has another type.
    pub fn texts(&self) -> Result<Vec<String>, Refusal> {
        self.of_type(Datatype::Bytes)?;
        Ok(self.request.incoming.texts(self.tensor))
    }

    /// The only element of a BYTES tensor of shape `[1]`.
    ///
    /// # Errors
    /// It has another type or shape.
    pub fn text(&self) -> Result<String, Refusal> {
        if self.spec.datatype != Datatype::Bytes || self.spec.shape != [1] {
            return Err(self.wrong(Datatype::Bytes, &[1]));
        }
        self.texts()?.pop().ok_or_else(|| self.refusal("holds no text"))
    }

    /// A refusal of this input: "input `NAME` SENTENCE".
    #[must_use]
    pub fn refusal(&self, sentence: impl std::fmt::Display) -> Refusal {
        Refusal::InvalidInput(format!("input `{}` {sentence}", self.spec.name))
    }

    /// A refusal of its type or shape; −1 is any extent.
    #[must_use]
    pub fn wrong(&self, datatype: Datatype, shape: &[i64]) -> Refusal {
        let (have, want) = (shown(&self.spec.shape), shown(shape));
        self.refusal(format!("must be {} {want}, it is {} {have}", datatype.name(), self.spec.datatype.name()))
    }

    fn of_type(&self, wanted: Datatype) -> Result<(), Refusal> {
        if self.spec.datatype == wanted {
            return Ok(());
        }
        Err(self.refusal(format!("must be {}, it is {}", wanted.name(), self.spec.datatype.name())))
    }
}

/// Rows of a request's tensor, one for each step of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// The tensor's number in the request.
    pub tensor: u32,
    /// How many rows it has: at least one.
    pub count: u32,
}

impl Sequence {
    /// Step t takes row t.
    #[must_use]
    pub const fn forward(self) -> Source {
        Source::Rows(Rows { tensor: self.tensor, at: Affine::EVERY })
    }

    /// Step t takes row t from the end.
    #[must_use]
    pub const fn backward(self) -> Source {
        Source::Rows(Rows { tensor: self.tensor, at: Affine::backward(self.count) })
    }

    /// Step t sees `count` rows, up to row t.
    pub const fn window(self, count: u32) -> Window {
        Window::new(SpanOf::Tensor(self.tensor), count)
    }
}

fn shown(shape: &[i64]) -> String {
    let extents: Vec<String> = shape.iter().map(|extent| if *extent < 0 { "any".into() } else { extent.to_string() }).collect();
    format!("[{}]", extents.join(", "))
}
