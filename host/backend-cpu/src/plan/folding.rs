//! Operations that are put together: what reads a value, and what makes it.

use super::lower::{LowOp, Lowered, Val};

/// Operations in their order; those that went into another are gone.
pub(super) struct Folding {
    pub(super) ops: Vec<Option<LowOp>>,
    /// By value: how often it is read (as an output, too), and which operation makes it.
    reads: Vec<usize>,
    makers: Vec<Option<usize>>,
}

impl Folding {
    /// Takes the operations.
    pub(super) fn of(lowered: &mut Lowered) -> Self {
        let (mut reads, mut makers) = (vec![0; lowered.values.len()], vec![None; lowered.values.len()]);
        for (at, op) in lowered.ops.iter().enumerate() {
            op.operands().into_iter().filter_map(|operand| operand.value()).for_each(|value| reads[value.0] += 1);
            op.results().for_each(|value| makers[value.0] = Some(at));
        }
        lowered.outputs.iter().for_each(|output| reads[output.0] += 1);
        let ops = std::mem::take(&mut lowered.ops).into_iter().map(Some).collect();
        Self { ops, reads, makers }
    }

    /// Which operation makes a value, if that is read once and no more.
    pub(super) fn maker_for_one(&self, value: Val) -> Option<usize> {
        self.makers[value.0].filter(|_| self.reads[value.0] == 1)
    }

    /// Gives back those that are left.
    pub(super) fn into(self, lowered: &mut Lowered) {
        lowered.ops = self.ops.into_iter().flatten().collect();
    }
}
