//! The loops over floats and integers that are not matrix products, compiled once for each instruction set.
//!
//! A kernel's arithmetic is branch-free scalar Rust that the compiler turns into vectors; an element's bits are the same in a vector, in the
//! remainder behind it and on every instruction set, because every operation in it rounds by itself (no reassociation, explicit fused
//! multiply-adds).

pub(crate) mod attention;
pub(crate) mod convert;
pub(crate) mod element;
pub(crate) mod gates;
pub(crate) mod math;
pub(crate) mod rows;
pub(crate) mod running;
pub(crate) mod screening;
pub(crate) mod softmax;
pub(crate) mod spans;

/// Compiles a function for each [`crate::level::Level`] and picks one: `dispatch!(level, f::<T>, [T: Bound], (a: A, …))` gives an `unsafe fn` pointer.
macro_rules! dispatch {
    ($level:expr, $function:ident :: < $($generic:ident),* >, [$($bound:tt)*], ($($argument:ident: $type:ty),*)) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
        unsafe fn avx512<$($bound)*>($($argument: $type),*) {
            // SAFETY: the caller's promise.
            unsafe { $function::<$($generic),*>($($argument),*) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2<$($bound)*>($($argument: $type),*) {
            // SAFETY: the caller's promise.
            unsafe { $function::<$($generic),*>($($argument),*) }
        }
        unsafe fn portable<$($bound)*>($($argument: $type),*) {
            // SAFETY: the caller's promise.
            unsafe { $function::<$($generic),*>($($argument),*) }
        }
        match $level {
            #[cfg(target_arch = "x86_64")]
            level if level >= $crate::level::Level::Avx512 => avx512::<$($generic),*> as unsafe fn($($type),*),
            #[cfg(target_arch = "x86_64")]
            $crate::level::Level::Avx2 => avx2::<$($generic),*> as unsafe fn($($type),*),
            _ => portable::<$($generic),*> as unsafe fn($($type),*),
        }
    }};
}
pub(crate) use dispatch;
