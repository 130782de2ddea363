//! Numbers of the element types: their arithmetic, none of which can fail, and the conversions between them.
//!
//! Integers wrap; a division by zero gives zero; a negative power truncates towards zero. Float to integer truncates and saturates, NaN is zero;
//! between integers the low bits stay; to BOOL is `≠ 0`.

use std::marker::PhantomData;

use super::element::{Element, Kernel, Map1, map1};
use crate::denormals::as_zero;
use crate::level::Level;

/// A number of an element type.
pub(crate) trait Number: Copy + PartialEq + 'static {
    const ZERO: Self;
    fn add(self, other: Self) -> Self;
    fn subtract(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn divide(self, other: Self) -> Self;
    fn power(self, other: Self) -> Self;
    fn negate(self) -> Self;
    fn is_below(self, other: Self) -> bool;
    /// Whether it takes this one's place as the largest: NaN counts as the largest.
    fn is_above_with_nan(self, other: Self) -> bool;
    fn mean_of(sum: Self, count: usize) -> Self;
}

impl Number for f32 {
    const ZERO: Self = 0.0;
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self + other
    }
    #[inline(always)]
    fn subtract(self, other: Self) -> Self {
        self - other
    }
    #[inline(always)]
    fn multiply(self, other: Self) -> Self {
        self * other
    }
    #[inline(always)]
    fn divide(self, other: Self) -> Self {
        self / other
    }
    #[inline(always)]
    fn power(self, other: Self) -> Self {
        as_zero(self).powf(as_zero(other))
    }
    #[inline(always)]
    fn negate(self) -> Self {
        -self
    }
    #[inline(always)]
    fn is_below(self, other: Self) -> bool {
        self < other
    }
    #[inline(always)]
    fn is_above_with_nan(self, other: Self) -> bool {
        // `other` may be NaN, which nothing is above.
        self > other || (self.is_nan() && !other.is_nan())
    }
    #[inline(always)]
    fn mean_of(sum: Self, count: usize) -> Self {
        sum / count as Self
    }
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            const ZERO: Self = 0;
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn subtract(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn divide(self, other: Self) -> Self {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }
            #[inline(always)]
            fn power(self, other: Self) -> Self {
                match u64::try_from(other) {
                    Ok(exponent) => power_by_squaring(self, exponent),
                    Err(_) if self == 1 => 1,
                    // −1 to a negative power; no other base has an integer there.
                    Err(_) if self.wrapping_add(1) == 0 => if other & 1 == 0 { 1 } else { self },
                    Err(_) => 0,
                }
            }
            #[inline(always)]
            fn negate(self) -> Self {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn is_below(self, other: Self) -> bool {
                self < other
            }
            #[inline(always)]
            fn is_above_with_nan(self, other: Self) -> bool {
                self > other
            }
            #[inline(always)]
            fn mean_of(sum: Self, count: usize) -> Self {
                // A row is far smaller than any of these types but the smallest, where the mean of so many wrapped sums means nothing.
                <$type>::try_from(count).map_or(0, |count| sum.divide(count))
            }
        }
    )*};
}

integers!(i64, i32, u8);

fn power_by_squaring<T: Number + From<u8>>(base: T, mut exponent: u64) -> T {
    let (mut result, mut base) = (T::from(1), base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result.multiply(base);
        }
        base = base.multiply(base);
        exponent >>= 1;
    }
    result
}

/// How an element is read before it is converted: truth is 0 or 1.
struct Convert<A, B>(PhantomData<(A, B)>);
struct ToBool<A>(PhantomData<A>);
struct FromBool<B>(PhantomData<B>);

macro_rules! conversions {
    ($($from:ty => $($to:ty),*;)*) => {$($(
        impl Map1 for Convert<$from, $to> {
            type In = $from;
            type Out = $to;
            #[inline(always)]
            fn apply(x: $from) -> $to {
                x as $to
            }
        }
    )*)*};
}

conversions! {
    f32 => f32, i64, i32, u8;
    i64 => f32, i64, i32, u8;
    i32 => f32, i64, i32, u8;
    u8 => f32, i64, i32, u8;
}

impl<A: Number> Map1 for ToBool<A> {
    type In = A;
    type Out = u8;
    #[inline(always)]
    fn apply(x: A) -> u8 {
        u8::from(x != A::ZERO)
    }
}

impl<B: Number + From<u8>> Map1 for FromBool<B> {
    type In = u8;
    type Out = B;
    #[inline(always)]
    fn apply(x: u8) -> B {
        B::from(u8::from(x != 0))
    }
}

macro_rules! to {
    ($from:ty, $to:expr, $level:expr) => {
        match $to {
            Element::F32 => map1::<Convert<$from, f32>>($level),
            Element::I64 => map1::<Convert<$from, i64>>($level),
            Element::I32 => map1::<Convert<$from, i32>>($level),
            Element::U8 => map1::<Convert<$from, u8>>($level),
            Element::Bool => map1::<ToBool<$from>>($level),
        }
    };
}

/// The kernel that converts elements.
pub(super) fn cast(from: Element, to: Element, level: Level) -> Kernel {
    match from {
        Element::F32 => to!(f32, to, level),
        Element::I64 => to!(i64, to, level),
        Element::I32 => to!(i32, to, level),
        Element::U8 => to!(u8, to, level),
        Element::Bool => match to {
            Element::F32 => map1::<FromBool<f32>>(level),
            Element::I64 => map1::<FromBool<i64>>(level),
            Element::I32 => map1::<FromBool<i32>>(level),
            Element::U8 | Element::Bool => map1::<FromBool<u8>>(level),
        },
    }
}
