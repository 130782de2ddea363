//! The cells of a model, and its description.

use cellwright_guest::prelude::*;
use cellwright_guest::types::Datatype::{Bytes, Fp32, Int64};

use crate::options::{Mode, Options};

/// A described model.
pub struct Tree {
    pub(crate) options: Options,
    pub(crate) leaf: Cell,
    pub(crate) node: Cell,
    pub(crate) head: Cell,
}

impl Tree {
    pub(crate) fn new(options: Options) -> (Self, Description) {
        let mut model = ModelBuilder::new();
        match &options.mode {
            Mode::Text { input, .. } => model.input(input, Bytes, &[1]),
            Mode::Arrays => model.input("tokens", Int64, &[-1]).input("children", Int64, &[-1, 2]),
        };
        model.output("logits", Fp32, &[options.classes.into()]).output("label", Int64, &[1]);
        let leaf = model.cell("leaf", |cell| {
            let token = cell.input("token", Int64, &[]);
            let x = cell.embedding(token, &options.leaf_embedding);
            cell.tree_leaf(x, options.hidden, &options.leaf);
        });
        let node = model.cell("node", |cell| cell.tree_node(options.hidden, &options.node));
        let head = model.cell("head", |cell| {
            let h = cell.input("h", Fp32, &[options.hidden]);
            let logits = cell.linear(h, &options.head);
            let label = cell.arg_max(logits, true);
            cell.output("logits", logits, Fp32, &[options.classes]);
            cell.output("label", label, Int64, &[1]);
        });
        (Self { options, leaf, node, head }, model.finish())
    }
}
