//! The stock plugin `encoder`: encoders like BERT, from a folder as Hugging Face's libraries write it, and what sentence-transformers does with
//! their states.
//!
//! A text's tokens are the steps of one chain for each layer. A node computes everything of one token in one layer: it sees the keys and
//! values of all tokens, which the layer before made.

mod options;
mod tokens;
mod unfold;

use cellwright_guest::prelude::*;

pub use unfold::Encoder;

impl Plugin for Encoder {
    fn describe(parameters: &Parameters, bundle: &Bundle) -> Result<(Self, Description), Refusal> {
        Ok(Self::new(options::Options::read(parameters, bundle)?))
    }

    fn unfold(&self, request: &Request) -> Result<Growth, Refusal> {
        self.graph(request)
    }
}

export_plugin!(Encoder);

/// The random source of the crate `getrandom`, which hash tables are seeded from. The sandbox has no
/// randomness, so every seed is the same.
#[cfg(target_arch = "wasm32")]
#[expect(unsafe_code, reason = "the name and form are those that `getrandom` asks for")]
#[unsafe(no_mangle)]
unsafe extern "Rust" fn __getrandom_v03_custom(into: *mut u8, count: usize) -> Result<(), getrandom::Error> {
    // SAFETY: so many bytes are there.
    unsafe { std::ptr::write_bytes(into, 7, count) };
    Ok(())
}
