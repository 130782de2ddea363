//! Checks what a plugin says against its model: the description once, and every growth of every request.
//!
//! What passes is an [`UnfoldedGrowth`], which nobody checks again. A growth is checked in time proportional to its run-length coded size
//! (a chain of 330 steps costs what one of 24 does), and nothing is believed before it is bounded.

mod cancelling;
mod chain;
mod draft;
mod error;
mod links;
mod model;
mod named;
mod next;
mod response;
mod series;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::graph::Growth;
use crate::layout::NodeLayout;
use crate::sharing;
use crate::tensor::Tensor;
use crate::unfolded::UnfoldedGrowth;

use cancelling::Cancelling;
use draft::{Draft, KeptChain};
pub use error::{GraphError, GraphFault, GraphPlace};
pub use model::{Model, ModelError, is_hidden};

/// What one growth may hold, expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphLimits {
    /// Nodes: steps times stages of all chains.
    pub nodes_max: u64,
    /// Edges: references from one node to another, one for each input and step.
    pub edges_max: u64,
    /// Chains; and kept, watched and cancelled ones; and those of a request since the oldest one that it keeps.
    pub chains_max: usize,
    /// Response tensors, and outputs they list.
    pub outputs_max: usize,
    /// Bytes of a continuation's state.
    pub state_bytes_max: usize,
}

impl Default for GraphLimits {
    fn default() -> Self {
        Self { nodes_max: 1 << 20, edges_max: 1 << 23, chains_max: 1 << 16, outputs_max: 1 << 12, state_bytes_max: 1 << 20 }
    }
}

/// One request while it unfolds: what its earlier growths left for later ones to refer to.
#[derive(Debug)]
pub struct Unfolding {
    model: Arc<Model>,
    limits: GraphLimits,
    chains: u32,
    kept: Vec<KeptChain>,
    cancelling: Cancelling,
    tensors_from: u32,
    /// Names of tensors that were let go.
    gone: BTreeSet<String>,
}

impl Unfolding {
    /// A request of that model, before its first growth.
    #[must_use]
    pub fn new(model: Arc<Model>, limits: GraphLimits) -> Self {
        Self { model, limits, chains: 0, kept: Vec::new(), cancelling: Cancelling::default(), tensors_from: 0, gone: BTreeSet::new() }
    }

    /// The request's model.
    #[must_use]
    pub const fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// How many chains the request has so far: the number of the next growth's first one.
    #[must_use]
    pub const fn chains(&self) -> u32 {
        self.chains
    }

    /// Checks the request's next growth. `tensors` are the request's, from number `first_tensor` on (a session lets go of earlier ones).
    ///
    /// # Errors
    /// One sentence that names the place in the growth and what is wrong. The unfolding is then as it was before.
    pub fn grow(&mut self, growth: Growth, first_tensor: u32, tensors: &[Arc<Tensor>]) -> Result<UnfoldedGrowth, GraphError> {
        let first_tensor_kept = self.tensors_from.max(first_tensor);
        let mut draft = Draft::new(self, &growth.chains, growth.cancel, first_tensor, tensors)?;
        for chain in growth.chains {
            draft.add_chain(chain)?;
        }
        draft.link_named();
        let outputs = draft.add_outputs(growth.outputs)?;
        let (next, kept) = match growth.next {
            Some(continuation) => draft.continuation(continuation, first_tensor_kept).map(|(watch, kept)| (Some(watch), kept))?,
            None => (None, Vec::new()),
        };
        draft.finish_series();
        // Later growths may keep, watch or cancel stages. So a request that grows shares nothing.
        let is_alone = draft.first_chain == 0 && next.is_none();
        let slots = |cell: u32| NodeLayout::slots_of(&self.model.cells[cell as usize]);
        let shared = if is_alone { sharing::plan(&draft.chains, slots) } else { None };
        let unfolded = UnfoldedGrowth {
            first_chain: draft.first_chain,
            chains: draft.chains,
            outputs,
            cancel: draft.cancel,
            next,
            nodes: draft.nodes,
            shared,
        };
        self.chains = draft.next_chain;
        self.kept = kept;
        if unfolded.next.is_some() {
            self.cancelling.grow(&unfolded);
        }
        self.tensors_from = unfolded.next.as_ref().map_or(self.tensors_from, |watch| watch.keep_tensors_from);
        let let_go = tensors.iter().zip(first_tensor..).take_while(|(_, number)| *number < self.tensors_from);
        for (tensor, _) in let_go {
            self.gone.insert(tensor.name.clone());
        }
        Ok(unfolded)
    }
}
