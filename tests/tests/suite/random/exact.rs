//! What a cell gives of one row on a device that does nothing else, held against the reference.

use std::sync::{Arc, Mutex, PoisonError};

use cellwright_backend::{CellTypeId, RowError};
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions};
use cellwright_cell_graph::check::Model;
use cellwright_cell_graph::generate::CELLS;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Run, RunOf, Source};
use cellwright_cell_graph::{Port, Tensor, TypedCell};
use cellwright_conformance::driver::{Driver, growth_of, independent};
use cellwright_conformance::reference::{Elements, evaluate};
use cellwright_tests::naive::Compute;

/// Rows after which a driver is replaced, which forgets nothing.
const ROWS: u32 = 2000;
/// Elements of a state from which on few rows are held against the reference, which is slow.
const WIDE: u32 = 64;

struct Exact {
    domain: Arc<CpuDomain>,
    cells: Vec<Arc<TypedCell>>,
    driver: Option<Driver>,
    rows: u32,
}

/// Computes a model's cells on a worker of their own, in a domain like that.
pub(crate) fn exact(model: &Arc<Model>, options: &DomainOptions) -> Compute {
    let domain = CpuDomain::new(DomainOptions { arena_bytes: Some(1 << 16), ..*options }).unwrap();
    let exact = Mutex::new(Exact { domain, cells: model.cells.clone(), driver: None, rows: 0 });
    Arc::new(move |cell, inputs| exact.lock().unwrap_or_else(PoisonError::into_inner).row(cell, inputs))
}

impl Exact {
    fn row(&mut self, cell: &Arc<TypedCell>, inputs: &[Elements]) -> Result<Vec<Elements>, RowError> {
        if self.rows.is_multiple_of(ROWS) {
            let worker = CpuWorker::new(self.domain.clone(), CpuOptions::default()).unwrap();
            self.driver = Some(Driver::new(Box::new(worker), &self.cells));
        }
        self.rows += 1;
        let driver = self.driver.as_mut().expect("made with the first row");
        let position = self.cells.iter().position(|known| Arc::ptr_eq(known, cell)).expect("a cell of the model") as u32;
        let mut tensors = Vec::new();
        let mut source = |(input, port): (&Elements, &Port)| {
            let bytes = input.to_bytes(port.datatype);
            if !port.ragged {
                return Source::Literal(bytes.into());
            }
            let shape: Vec<usize> = port.shape.iter().map(|extent| *extent as usize).collect();
            let row = shape.iter().product::<usize>() * port.datatype.size().expect("rows of a fixed size");
            let (of, at) = (RunOf::Tensor(tensors.len() as u32), Affine { first: 0, stride: 0, from_end: false });
            let shape = std::iter::once(bytes.len() / row).chain(shape).collect();
            tensors.push(Arc::new(Tensor { name: port.name.clone(), datatype: port.datatype, shape, data: bytes }));
            Source::Span([Run { of, at, every: 1, count: u32::MAX }].into())
        };
        let sources = inputs.iter().zip(&cell.inputs).map(&mut source).collect();
        let growth = growth_of(vec![independent(position, cell.outputs.len(), sources, 1)]);
        let placed = driver.place(Arc::new(growth), &tensors, 0, &[]);
        let lane = placed.lanes[0][0];
        let completed = driver.task(CellTypeId(position), &[(lane, 0)], 1);
        if let Some(refused) = completed.refused.first() {
            assert_eq!(evaluate(cell, inputs).err().as_ref(), Some(&refused.error), "cell {}", cell.name);
            return Err(refused.error.clone());
        }
        let delivered = std::mem::take(&mut driver.delivered);
        let outputs = (0..).zip(&cell.outputs).map(|(output, of)| Elements::from_bytes(of.port.datatype, &delivered[&(lane, output, 0)]));
        let outputs: Vec<Elements> = outputs.collect();
        // Random bodies are held against it elsewhere.
        if position > CELLS.span {
            return Ok(outputs);
        }
        let wide = cell.outputs.iter().any(|output| output.port.shape.iter().any(|extent| *extent >= WIDE));
        if !wide || self.rows.is_multiple_of(64) {
            near(cell, &outputs, &evaluate(cell, inputs)?);
        }
        Ok(outputs)
    }
}

fn near(cell: &TypedCell, given: &[Elements], wanted: &[Elements]) {
    let bound = if cell.precision == Precision::F32 { 1e-4 } else { 3e-2 };
    for (given, wanted) in given.iter().zip(wanted) {
        let same = match (given, wanted) {
            (Elements::Floats(a), Elements::Floats(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= bound * (1.0 + b.abs()))
            }
            // What is rounded may be another number than in 64 bits, and then another one is the largest.
            (a, b) => a == b || cell.precision != Precision::F32,
        };
        assert!(same, "cell {} gives {given:?}, not {wanted:?}", cell.name);
    }
}
