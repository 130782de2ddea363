//! Bodies at random: whatever of a row shares memory, and in whatever order it is made, each row is what the reference says, and has the same bits in any company.

use std::sync::Arc;

use cellwright_backend::CellIndex;
use cellwright_backend::conformance::cells::Draft;
use cellwright_backend::conformance::driver::{Driver, growth_of, independent};
use cellwright_backend::reference::{Elements, evaluate};
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::unfolded::Source;
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};

const BODIES: u64 = 300;
const ROWS: usize = 9;
const INPUTS: [(&str, usize); 3] = [("x", 7), ("y", 33), ("z", 300)];
/// Elements of a value at most.
const WIDTH_MOST: usize = 900;

/// A body that is being made: its values, and how many elements each has.
struct Making {
    rng: Rng,
    draft: Draft,
    values: Vec<(String, usize)>,
    weights: usize,
}

impl Making {
    /// A value, one of the last more often than others.
    fn pick(&mut self) -> (String, usize) {
        let count = self.values.len() as u64;
        let back = if self.rng.one_in(2) { self.rng.below(count.min(4)) } else { self.rng.below(count) };
        self.values[(count - 1 - back) as usize].clone()
    }

    fn add(&mut self, width: usize, operator: impl FnOnce(Draft, &str) -> Draft) {
        let name = format!("v{}", self.values.len());
        self.draft = operator(self.draft.clone(), &name);
        self.values.push((name, width));
    }

    fn weight(&mut self, shape: &[usize]) -> String {
        self.weights += 1;
        let name = format!("w{}", self.weights);
        let scale = 1.0 / (shape[0] as f32).sqrt();
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| self.rng.float() * scale).collect();
        self.draft = self.draft.clone().weight(Tensor::from_f32(&name, shape, &values));
        name
    }

    fn step(&mut self) {
        let (value, width) = self.pick();
        let value = value.as_str();
        match self.rng.below(7) {
            0 => {
                let kind = ["Tanh", "Sigmoid", "Relu"][self.rng.below(3) as usize];
                self.add(width, |draft, name| draft.operator(kind, &[value], &[name]));
            }
            1 => {
                let others: Vec<String> = self.values.iter().filter(|other| other.1 == width).map(|other| other.0.clone()).collect();
                let other = &others[self.rng.below(others.len() as u64) as usize];
                let kind = if self.rng.one_in(2) { "Mul" } else { "Add" };
                self.add(width, |draft, name| draft.operator(kind, &[value, other], &[name]));
            }
            2 => {
                let more = [self.pick(), self.pick()];
                let parts = [(value.to_owned(), width)].into_iter().chain(more).take(self.rng.between(2, 3) as usize).collect::<Vec<_>>();
                let (names, total): (Vec<&str>, usize) =
                    (parts.iter().map(|part| part.0.as_str()).collect(), parts.iter().map(|part| part.1).sum());
                if total <= WIDTH_MOST {
                    self.add(total, |draft, name| draft.operator("Concat", &names, &[name]).with("axis", 1));
                }
            }
            3 if width > 1 => {
                let first = 1 + self.rng.below(width as u64 - 1) as usize;
                let name = format!("v{}", self.values.len());
                let rest = format!("v{}", self.values.len() + 1);
                let sizes = [first as i64, (width - first) as i64];
                self.draft =
                    self.draft.clone().operator("Split", &[value], &[&name, &rest]).with("axis", 1).with("split", sizes.as_slice());
                self.values.extend([(name, first), (rest, width - first)]);
            }
            4 => self.add(width, |draft, name| draft.operator("Softmax", &[value], &[name]).with("axis", 1)),
            5 => self.add(width, |draft, name| {
                let slice = draft.operator("Slice", &[value], &[name]).with("starts", [-1].as_slice()).with("axes", [1].as_slice());
                slice.with("ends", [i64::from(i32::MIN)].as_slice()).with("steps", [-1].as_slice())
            }),
            _ => {
                let columns = [1, 3, 33, 130, 300][self.rng.below(5) as usize];
                let weight = self.weight(&[width, columns]);
                self.add(columns, |draft, name| draft.operator("MatMul", &[value, &weight], &[name]));
            }
        }
    }
}

fn body(seed: u64) -> Arc<TypedCell> {
    let mut rng = Rng::new(seed);
    let mut draft = Draft::new("body");
    for (name, width) in INPUTS {
        draft = if rng.one_in(2) { draft.input(name, Datatype::Fp32, &[width]) } else { draft.known(name, Datatype::Fp32, &[width]) };
    }
    let values = INPUTS.iter().map(|(name, width)| ((*name).to_owned(), *width)).collect();
    let mut making = Making { rng, draft, values, weights: 0 };
    (0..making.rng.between(4, 24)).for_each(|_| making.step());
    let mut outputs = vec![making.values[making.values.len() - 1].clone()];
    let more = making.pick();
    outputs.extend((more != outputs[0]).then_some(more));
    outputs.iter().fold(making.draft, |draft, (name, width)| draft.output(name, Datatype::Fp32, &[*width])).resolve()
}

/// What each row delivers, of tasks of so many rows, on so many threads.
fn run(cell: &Arc<TypedCell>, rows: &[Vec<Vec<f32>>], (rows_most, threads): (usize, usize)) -> Vec<Vec<Vec<f32>>> {
    let domain = CpuDomain::new(DomainOptions { arena_bytes: Some(1 << 20), ..DomainOptions::default() }).expect("1 MiB is there");
    let worker = CpuWorker::new(domain, CpuOptions { threads, ..CpuOptions::default() }).expect("threads start");
    let mut driver = Driver::new(Box::new(worker), std::slice::from_ref(cell));
    let literal = |values: &Vec<f32>| Source::Literal(values.iter().flat_map(|value| value.to_ne_bytes()).collect());
    let lanes: Vec<_> = rows
        .iter()
        .map(|row| {
            let chain = independent(0, cell.outputs.len(), row.iter().map(literal).collect(), 1);
            driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[]).lanes[0][0]
        })
        .collect();
    for lanes in lanes.chunks(rows_most) {
        driver.task(CellIndex(0), &lanes.iter().map(|lane| (*lane, 0)).collect::<Vec<_>>(), 1);
    }
    lanes.iter().map(|lane| (0..cell.outputs.len() as u32).map(|output| driver.floats(*lane, output, 0)).collect()).collect()
}

#[test]
fn rows_are_what_their_bodies_say() {
    for seed in 0..BODIES {
        let cell = body(seed);
        let mut rng = Rng::new(1000 + seed);
        let rows: Vec<Vec<Vec<f32>>> =
            (0..ROWS).map(|_| INPUTS.iter().map(|(_, width)| (0..*width).map(|_| rng.float()).collect()).collect()).collect();
        let together = run(&cell, &rows, (ROWS, 1));
        for how in [(1, 1), (4, 3)] {
            assert!(run(&cell, &rows, how) == together, "seed {seed}: {how:?}");
        }
        for (row, outputs) in rows.iter().zip(&together) {
            let inputs: Vec<Elements> =
                row.iter().map(|values| Elements::Floats(values.iter().copied().map(f64::from).collect())).collect();
            for (expected, got) in evaluate(&cell, &inputs).expect("no token").iter().zip(outputs) {
                let Elements::Floats(expected) = expected else { panic!("outputs are floats") };
                let most = expected.iter().fold(1.0_f64, |most, value| most.max(value.abs()));
                for (at, (expected, got)) in expected.iter().zip(got).enumerate() {
                    assert!((expected - f64::from(*got)).abs() <= 1e-3 * most, "seed {seed}, element {at}: {got} instead of {expected}");
                }
            }
        }
    }
}
