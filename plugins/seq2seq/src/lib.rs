//! The stock plugin `seq2seq`: an encoder-decoder that feeds what it wrote back in, on text or on token ids.
//!
//! The encoder reads the source; the decoder starts from its final state and writes a token a step until it writes end-of-sequence. Nothing
//! here runs while it does: the decoder's token is its next token, and its stop is computed in the cell. On text this plugin is also the
//! tokenizer, and renders every token as it comes.

mod model;
mod options;
mod text;
mod unfold;

use cellwright_guest::prelude::*;

pub use model::Seq2seq;

impl Plugin for Seq2seq {
    fn describe(parameters: &Parameters, bundle: &Bundle) -> Result<(Self, Description), Refusal> {
        Ok(Self::new(options::Options::read(parameters, bundle)?))
    }

    fn unfold(&self, request: &Request) -> Result<Growth, Refusal> {
        unfold::unfold(self, request)
    }

    fn resume(&self, _: &[u8], event: &Event, _: &Request) -> Result<Reaction, Refusal> {
        unfold::render(self, event)
    }
}

export_plugin!(Seq2seq);
