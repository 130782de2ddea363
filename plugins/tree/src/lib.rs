//! The stock plugin `tree`: a binary TreeLSTM and a head on its root, over a bracketed expression or over index arrays.
//!
//! It owns the parsing of both. However large the tree, its graph is three entries: all leaves, all internal nodes, the head; nodes of equal
//! height run together, across requests too.

mod arrays;
mod expression;
mod model;
mod options;
mod shape;
mod unfold;

use cellwright_guest::prelude::*;

pub use model::Tree;

impl Plugin for Tree {
    fn describe(parameters: &Parameters, bundle: &Bundle) -> Result<(Self, Description), Refusal> {
        Ok(Self::new(options::Options::read(parameters, bundle)?))
    }

    fn unfold(&self, request: &Request) -> Result<Growth, Refusal> {
        unfold::unfold(self, request)
    }
}

export_plugin!(Tree);
