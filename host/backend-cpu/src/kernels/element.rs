//! Element-wise kernels: one per operation, element type and instruction set, over rows of operands that may lie apart.

use std::marker::PhantomData;

use cellwright_cell_graph::typed::{BinaryKind, UnaryKind};

use super::convert::{self, Number};
use super::gates::{self, Factor};
use super::{dispatch, math};
use crate::denormals::as_zero;
use crate::level::Level;

/// Up to three operands: where the first row begins, and how many bytes apart rows are. What lies that far behind the last row may be asked for, too; where that is of no use to anybody the distance of a row by itself is 0.
pub(crate) type Sources = [(*const u8, usize); 3];

/// `(result, bytes between its rows, operands, rows, elements of a row)`.
///
/// # Safety
/// All rows are valid for their elements and aligned to them, the result's are nobody else's, and the processor has what the kernel was
/// compiled for.
pub(crate) type Kernel = unsafe fn(*mut u8, usize, Sources, usize, usize);

/// How an element is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Element {
    F32,
    I64,
    I32,
    U8,
    /// A byte; anything but 0 is true, what kernels write is 0 or 1.
    Bool,
}

impl Element {
    pub(crate) const fn size(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::U8 | Self::Bool => 1,
        }
    }
}

/// What an element-wise operation computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ElementOp {
    Unary(UnaryKind),
    Binary(BinaryKind),
    /// The product of two floats of which one at least is a function of what is read.
    Gate(Factor, Factor),
    Where,
    Cast(Element),
}

impl ElementOp {
    /// The kernel for operands of that element type (for `Where` the type of its branches); none if there is no such operation.
    pub(crate) fn kernel(self, element: Element, level: Level) -> Option<Kernel> {
        match self {
            Self::Unary(kind) => unary(kind, element, level),
            Self::Binary(kind) => binary(kind, element, level),
            Self::Gate(first, second) => gates::product((first, second), level).filter(|_| element == Element::F32),
            Self::Where => Some(match element.size() {
                1 => map3::<Select<u8>>(level),
                4 => map3::<Select<u32>>(level),
                _ => map3::<Select<u64>>(level),
            }),
            Self::Cast(to) => Some(convert::cast(element, to, level)),
        }
    }

    /// How many operations it is.
    pub(crate) fn count(self) -> usize {
        match self {
            Self::Gate(first, second) => 1 + [first, second].into_iter().filter(|factor| *factor != Factor::Itself).count(),
            _ => 1,
        }
    }
}

/// A function of one element.
pub(crate) trait Map1 {
    type In: Copy;
    type Out: Copy;
    fn apply(x: Self::In) -> Self::Out;
}

/// A function of two elements.
pub(crate) trait Map2 {
    type In: Copy;
    type Out: Copy;
    fn apply(a: Self::In, b: Self::In) -> Self::Out;
}

/// A choice between two elements.
pub(crate) trait Map3 {
    type In: Copy;
    fn apply(condition: u8, a: Self::In, b: Self::In) -> Self::In;
}

/// # Safety
/// As for [`Kernel`].
#[inline(always)]
pub(super) unsafe fn row<'a, T>((start, stride): (*const u8, usize), row: usize, width: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start.add(row * stride).cast(), width) }
}

/// # Safety
/// As for [`Kernel`].
#[inline(always)]
pub(super) unsafe fn row_mut<'a, T>(start: *mut u8, stride: usize, row: usize, width: usize) -> &'a mut [T] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(start.add(row * stride).cast(), width) }
}

/// # Safety
/// As for [`Kernel`].
#[inline(always)]
unsafe fn run1<O: Map1>(result: *mut u8, stride: usize, sources: Sources, rows: usize, width: usize) {
    for at in 0..rows {
        // SAFETY: the caller's promise.
        let (y, x) = unsafe { (row_mut::<O::Out>(result, stride, at, width), row::<O::In>(sources[0], at, width)) };
        for (y, x) in y.iter_mut().zip(x) {
            *y = O::apply(*x);
        }
    }
}

/// # Safety
/// As for [`Kernel`].
#[inline(always)]
unsafe fn run2<O: Map2>(result: *mut u8, stride: usize, sources: Sources, rows: usize, width: usize) {
    for at in 0..rows {
        // SAFETY: the caller's promise.
        let (y, a, b) = unsafe {
            (row_mut::<O::Out>(result, stride, at, width), row::<O::In>(sources[0], at, width), row::<O::In>(sources[1], at, width))
        };
        for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
            *y = O::apply(*a, *b);
        }
    }
}

/// # Safety
/// As for [`Kernel`].
#[inline(always)]
unsafe fn run3<O: Map3>(result: *mut u8, stride: usize, sources: Sources, rows: usize, width: usize) {
    for at in 0..rows {
        // SAFETY: the caller's promise.
        let (y, condition) = unsafe { (row_mut::<O::In>(result, stride, at, width), row::<u8>(sources[0], at, width)) };
        // SAFETY: the caller's promise.
        let (a, b) = unsafe { (row::<O::In>(sources[1], at, width), row::<O::In>(sources[2], at, width)) };
        for (((y, condition), a), b) in y.iter_mut().zip(condition).zip(a).zip(b) {
            *y = O::apply(*condition, *a, *b);
        }
    }
}

pub(crate) fn map1<O: Map1>(level: Level) -> Kernel {
    dispatch!(level, run1::<O>, [O: Map1], (result: *mut u8, stride: usize, sources: Sources, rows: usize, width: usize))
}

pub(super) fn map2<O: Map2>(level: Level) -> Kernel {
    dispatch!(level, run2::<O>, [O: Map2], (result: *mut u8, stride: usize, sources: Sources, rows: usize, width: usize))
}

fn map3<O: Map3>(level: Level) -> Kernel {
    dispatch!(level, run3::<O>, [O: Map3], (result: *mut u8, stride: usize, sources: Sources, rows: usize, width: usize))
}

struct Select<T>(PhantomData<T>);

impl<T: Copy> Map3 for Select<T> {
    type In = T;
    #[inline(always)]
    fn apply(condition: u8, a: T, b: T) -> T {
        if condition != 0 { a } else { b }
    }
}

/// `kernel::<Operation<T>>(level)` for the number type of an element; none for BOOL.
macro_rules! numbers {
    ($element:expr, $operation:ident, $map:ident, $level:expr) => {
        match $element {
            Element::F32 => Some($map::<$operation<f32>>($level)),
            Element::I64 => Some($map::<$operation<i64>>($level)),
            Element::I32 => Some($map::<$operation<i32>>($level)),
            Element::U8 => Some($map::<$operation<u8>>($level)),
            Element::Bool => None,
        }
    };
}

macro_rules! unary_ops {
    ($($name:ident: |$x:ident: $type:ty| $body:expr;)*) => {$(
        pub(super) struct $name;
        impl Map1 for $name {
            type In = $type;
            type Out = $type;
            #[inline(always)]
            fn apply($x: $type) -> $type {
                $body
            }
        }
    )*};
}

unary_ops! {
    Itself: |x: f32| x;
    Sigmoid: |x: f32| math::sigmoid(x);
    Tanh: |x: f32| math::tanh(x);
    Gelu: |x: f32| math::gelu(x);
    GeluTanh: |x: f32| math::gelu_tanh(x);
    Silu: |x: f32| math::silu(x);
    Exp: |x: f32| math::exp(x);
    Log: |x: f32| as_zero(x).ln();
    Sqrt: |x: f32| x.sqrt();
    Not: |x: u8| u8::from(x == 0);
}

fn unary(kind: UnaryKind, element: Element, level: Level) -> Option<Kernel> {
    Some(match (kind, element) {
        (UnaryKind::Neg, _) => return numbers!(element, Neg, map1, level),
        (UnaryKind::Relu, _) => return numbers!(element, Relu, map1, level),
        (UnaryKind::Sigmoid, Element::F32) => gates::alone::<Sigmoid>(level),
        (UnaryKind::Tanh, Element::F32) => gates::alone::<Tanh>(level),
        (UnaryKind::Gelu, Element::F32) => map1::<Gelu>(level),
        (UnaryKind::GeluTanh, Element::F32) => map1::<GeluTanh>(level),
        (UnaryKind::Silu, Element::F32) => map1::<Silu>(level),
        (UnaryKind::Exp, Element::F32) => map1::<Exp>(level),
        (UnaryKind::Log, Element::F32) => map1::<Log>(level),
        (UnaryKind::Sqrt, Element::F32) => map1::<Sqrt>(level),
        (UnaryKind::Not, Element::Bool) => map1::<Not>(level),
        _ => return None,
    })
}

macro_rules! number_ops {
    ($($name:ident, $map:ident: |$($x:ident),*| -> $out:ty { $body:expr };)*) => {$(
        struct $name<T>(PhantomData<T>);
        impl<T: Number> $map for $name<T> {
            type In = T;
            type Out = $out;
            #[inline(always)]
            fn apply($($x: T),*) -> $out {
                $body
            }
        }
    )*};
}

number_ops! {
    Neg, Map1: |x| -> T { x.negate() };
    Relu, Map1: |x| -> T { if x.is_below(T::ZERO) { T::ZERO } else { x } };
    Add, Map2: |a, b| -> T { a.add(b) };
    Sub, Map2: |a, b| -> T { a.subtract(b) };
    Mul, Map2: |a, b| -> T { a.multiply(b) };
    Div, Map2: |a, b| -> T { a.divide(b) };
    Pow, Map2: |a, b| -> T { a.power(b) };
    Equal, Map2: |a, b| -> u8 { u8::from(a == b) };
    Greater, Map2: |a, b| -> u8 { u8::from(b.is_below(a)) };
    Less, Map2: |a, b| -> u8 { u8::from(a.is_below(b)) };
}

macro_rules! truth_ops {
    ($($name:ident: |$a:ident, $b:ident| $body:expr;)*) => {$(
        struct $name;
        impl Map2 for $name {
            type In = u8;
            type Out = u8;
            #[inline(always)]
            fn apply($a: u8, $b: u8) -> u8 {
                let ($a, $b) = ($a != 0, $b != 0);
                u8::from($body)
            }
        }
    )*};
}

truth_ops! {
    And: |a, b| a & b;
    Or: |a, b| a | b;
    Same: |a, b| a == b;
}

fn binary(kind: BinaryKind, element: Element, level: Level) -> Option<Kernel> {
    match (kind, element) {
        (BinaryKind::And, Element::Bool) => Some(map2::<And>(level)),
        (BinaryKind::Or, Element::Bool) => Some(map2::<Or>(level)),
        (BinaryKind::Equal, Element::Bool) => Some(map2::<Same>(level)),
        (BinaryKind::Add, _) => numbers!(element, Add, map2, level),
        (BinaryKind::Sub, _) => numbers!(element, Sub, map2, level),
        (BinaryKind::Mul, _) => numbers!(element, Mul, map2, level),
        (BinaryKind::Div, _) => numbers!(element, Div, map2, level),
        (BinaryKind::Pow, _) => numbers!(element, Pow, map2, level),
        (BinaryKind::Equal, _) => numbers!(element, Equal, map2, level),
        (BinaryKind::Greater, _) => numbers!(element, Greater, map2, level),
        (BinaryKind::Less, _) => numbers!(element, Less, map2, level),
        (BinaryKind::And | BinaryKind::Or, _) => None,
    }
}
