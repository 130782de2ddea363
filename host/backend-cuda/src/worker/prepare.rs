//! What takes long of loading a cell and needs no device: its plan, its weights as the kernels read them, its groups' own kernels.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cellwright_backend::{LoadError, Prepare, Prepared};
use cellwright_cell_graph::TypedCell;
use cellwright_cell_graph::hoist::Half;

use super::resident::Resident;
use super::table::Table;
use crate::driver::Compiler;
use crate::plan::{Generated, Plan, Spans, Target, generate};

/// Groups of a cell that are compiled, at most: each takes a compiler a moment.
const COMPILED_MAX: usize = 16;

/// Of one worker.
pub(super) struct Preparer {
    pub(super) target: Target,
    /// None: groups are interpreted.
    pub(super) compiler: Option<Compiler>,
    /// What weights may take of the device's memory, and may still take.
    pub(super) weight_bytes: u64,
    pub(super) weights_left: Arc<AtomicU64>,
}

/// A cell that has only to be uploaded.
pub(super) struct ReadyCell {
    pub(super) plan: Plan,
    /// By step: the text of a kernel that has been compiled.
    pub(super) generated: Vec<Option<Generated>>,
    /// Bytes that a table by token may take.
    pub(super) table_bytes_max: u64,
    /// What runs before it, if it is the rest of a cell with ragged inputs.
    pub(super) spans: Option<Spans<ReadyPart>>,
}

/// A part of a cell with ragged inputs.
pub(super) struct ReadyPart {
    pub(super) cell: TypedCell,
    pub(super) ready: ReadyCell,
}

impl ReadyCell {
    /// What it takes of the device's memory, without a table.
    pub(super) fn bytes(&self) -> u64 {
        let parts = self.spans.iter().flat_map(Spans::bodies).map(|part| part.ready.bytes());
        Resident::bytes_of(&self.plan) as u64 + parts.sum::<u64>()
    }
}

impl Preparer {
    /// Texts for as many groups as are compiled. Nobody waits for texts that a compiler does not take: after one of them the cell's other groups are interpreted too.
    fn generate(&self, plan: &Plan) -> Vec<Option<Generated>> {
        let mut generated: Vec<Option<Generated>> = Vec::new();
        let Some(compiler) = &self.compiler else { return generated };
        let mut left = COMPILED_MAX;
        for step in 0..plan.steps.len() {
            let text = if left > 0 { generate(plan, step) } else { None };
            if let Some(text) = &text {
                if !compiler.takes(&text.source) {
                    break;
                }
                left -= 1;
            }
            generated.push(text);
        }
        generated
    }
}

impl Preparer {
    fn ready(&self, plan: Plan) -> ReadyCell {
        ReadyCell { generated: self.generate(&plan), plan, table_bytes_max: 0, spans: None }
    }
}

impl Prepare for Preparer {
    fn prepare(&self, cell: &Arc<TypedCell>, weight_bytes_max: u64) -> Result<Prepared, LoadError> {
        let available = self.weights_left.load(Ordering::Relaxed).min(weight_bytes_max);
        if cell.weight_bytes > available {
            return Err(LoadError::OutOfMemory { cell: cell.name.clone(), needed: cell.weight_bytes, available });
        }
        let mut part = |Half { cell, .. }: Half| {
            let plan = Plan::compile_part(&cell, available, self.target)?;
            Ok(ReadyPart { cell, ready: self.ready(plan) })
        };
        let mut ready = match Spans::compile(cell, &mut part)? {
            Some((spans, rest)) => ReadyCell { spans: Some(spans), ..rest.ready },
            None => self.ready(Plan::compile(cell, available, self.target)?),
        };
        let bytes = ready.bytes();
        ready.table_bytes_max = available.saturating_sub(bytes);
        let table = Table::of(&ready.plan).map_or(0, |table| table.bytes());
        let weight_bytes = if table <= ready.table_bytes_max { bytes + table } else { bytes };
        Ok(Prepared { cell: Box::new(ready), weight_bytes, row_bytes: 0 })
    }

    fn own_memory(&self) -> Option<u64> {
        Some(self.weight_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use cellwright_cell_graph::Datatype::Fp32;
    use cellwright_cell_graph::Tensor;
    use cellwright_conformance::cells::Draft;

    use super::*;

    /// So many products, each with a group behind it.
    fn deep(groups: usize) -> Arc<TypedCell> {
        let weight = Tensor::from_f32("w", &[4, 4], &[0.25; 16]);
        let draft = Draft::new("deep").input("x0", Fp32, &[4]).weight(weight).output(&format!("x{groups}"), Fp32, &[4]);
        let with_one = |draft: Draft, number: usize| {
            let [x, y, next] = [format!("x{number}"), format!("y{number}"), format!("x{}", number + 1)];
            draft.operator("MatMul", &[&x, "w"], &[&y]).operator("Tanh", &[&y], &[&next])
        };
        (0..groups).fold(draft, with_one).resolve()
    }

    /// What is made of a cell, and the texts that a compiler is given which takes so many.
    fn prepared(cell: &Arc<TypedCell>, takes: usize) -> (ReadyCell, Vec<String>) {
        let given = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&given);
        let compiler = Compiler::new("a test's".to_owned(), move |source| {
            let mut given = to.lock().unwrap_or_else(PoisonError::into_inner);
            given.push(source.to_owned());
            if given.len() <= takes { Ok(()) } else { Err("one too many".to_owned()) }
        });
        let weights_left = Arc::new(AtomicU64::new(1 << 20));
        let target = Target { is_hopper: true, tf32: false };
        let preparer = Preparer { target, compiler: Some(compiler), weight_bytes: 1 << 20, weights_left };
        let ready = preparer.prepare(cell, u64::MAX).expect("it can run").cell.downcast::<ReadyCell>().expect("what it makes");
        (*ready, std::mem::take(&mut *given.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn texts(ready: &ReadyCell) -> Vec<&str> {
        ready.generated.iter().flatten().map(|generated| &*generated.source).collect()
    }

    #[test]
    fn groups_are_compiled_before_a_worker_has_them() {
        let (ready, given) = prepared(&deep(5), usize::MAX);
        assert!(given.len() >= 5, "{given:?}");
        assert_eq!(texts(&ready), given);
        let (ready, given) = prepared(&deep(40), usize::MAX);
        assert_eq!((texts(&ready).len(), given.len()), (COMPILED_MAX, COMPILED_MAX));
        assert_eq!(ready.generated.len(), ready.plan.steps.len());
    }

    #[test]
    fn what_a_compiler_does_not_take_is_tried_once() {
        let (ready, given) = prepared(&deep(5), 2);
        assert_eq!((texts(&ready).len(), given.len()), (2, 3));
        assert_eq!(texts(&ready), given[..2]);
    }

    #[test]
    fn weights_that_have_no_room_are_not_packed() {
        let preparer = |left| Preparer {
            target: Target { is_hopper: true, tf32: false },
            compiler: None,
            weight_bytes: left,
            weights_left: Arc::new(AtomicU64::new(left)),
        };
        let refused = Some(LoadError::OutOfMemory { cell: "deep".to_owned(), needed: 64, available: 63 });
        assert_eq!(preparer(63).prepare(&deep(1), u64::MAX).err(), refused);
        assert_eq!(preparer(1 << 20).prepare(&deep(1), 63).err(), refused);
    }
}
