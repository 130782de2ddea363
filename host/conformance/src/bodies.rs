//! Bodies at random: whatever of a row shares memory, and in whatever order it is made, each row is what the reference says, and has the same bits in any
//! company.

mod making;

use std::collections::BTreeMap;
use std::sync::Arc;

use cellwright_cell_graph::generate::{ModelShape, Rng};
use cellwright_cell_graph::resolve::{CellLimits, ResolveContext};
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Retention, Source};
use cellwright_cell_graph::weights::Weights;
use cellwright_cell_graph::{Cell, Datatype, Port, TypedCell};

use super::cells::Draft;
use super::driver::{Driver, growth_of, independent};
use crate::reference::{Elements, evaluate};
use cellwright_backend::{Backend, CellTypeId};
use making::{Making, SHAPES, TABLE_ROWS};

/// Steps of each row's chain.
const STEPS: u32 = 4;

/// Rows that are run alone: the others are compared from one company to the next.
const ALONE: usize = 7;

/// How far a sum may be from the exact one, in proportion to the largest of its value: they are long, and there are many behind one another.
const NEAR: f64 = 1e-3;

/// Floats that are hard.
const HARD: [f32; 9] = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, 1e-42, -1e30];

/// A body, and rows to compute by it.
pub struct Body {
    /// The cell.
    pub cell: Arc<TypedCell>,
    seed: u64,
    /// The same in 32-bit floats.
    exact: Arc<TypedCell>,
    /// For each input the output by which it goes on.
    feeds: Vec<Option<u32>>,
    rows: Vec<Vec<Source>>,
}

/// How large a body is, and how many rows are computed by it.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Elements of a value, at most.
    pub elements_most: usize,
    /// Operators that it is made of, or as many small groups of some, at most.
    pub operators_most: u32,
    /// Rows.
    pub rows: usize,
}

/// Of what tasks a run consists.
#[derive(Clone, Copy, Debug)]
pub struct Company {
    /// Rows of one task, at most.
    pub rows_most: usize,
    /// Steps of one task.
    pub steps: u32,
    /// What is kept of each chain.
    pub retention: Retention,
}

impl Company {
    /// Each row by itself, step by step.
    pub const ALONE: Self = Self { rows_most: 1, steps: 1, retention: Retention::All };
}

/// What was delivered: by row, output and step.
pub type Outputs = BTreeMap<(usize, u32, u32), Vec<u8>>;

/// A cell whose body is that of the seed, for a model of the generator: what it reads and gives is in part what that model's cells pass on to one another. None if it
/// is none that cells may have.
#[must_use]
pub fn cell_among(shape: ModelShape, seed: u64, precision: Precision) -> Option<(Cell, Arc<TypedCell>)> {
    let [width, hidden] = [shape.width, shape.hidden].map(|extent| [extent as usize]);
    let mut making = Making::new(Rng::new(seed), 600);
    making.begin(&[&hidden, &hidden, &hidden, &width, &[2, 5]]);
    (0..making.rng.between(1, 10)).for_each(|_| making.step());
    making.vector_out(hidden[0]);
    let draft = making.end().0.named(&format!("body {seed}"));
    let (cell, _) = draft.clone().into_parts();
    Some((cell, resolved(draft, precision)?))
}

impl Body {
    /// The body of that seed; none if it is none that cells may have.
    #[must_use]
    pub fn new(seed: u64, precision: Precision, size: Size) -> Option<Self> {
        let mut making = Making::new(Rng::new(seed), size.elements_most);
        making.begin(&SHAPES);
        (0..making.rng.between(3, size.operators_most)).for_each(|_| making.step());
        let (draft, mut rng) = making.end();
        let (cell, exact) = (resolved(draft.clone(), precision)?, resolved(draft, Precision::F32)?);
        let fed = |port: &Port, rng: &mut Rng| {
            let outputs = (0..).zip(&cell.outputs);
            let fits = outputs.filter(|(_, output)| output.port.shape == port.shape && output.port.datatype == port.datatype);
            let fits: Vec<u32> = fits.map(|(number, _)| number).collect();
            (port.carried && !fits.is_empty() && !rng.one_in(4)).then(|| fits[rng.below(fits.len() as u64) as usize])
        };
        let feeds = cell.inputs.iter().map(|port| fed(port, &mut rng)).collect();
        let rows = (0..size.rows).map(|row| cell.inputs.iter().map(|port| source(port, row, &mut rng)).collect()).collect();
        Some(Self { cell, seed, exact, feeds, rows })
    }

    /// What each row delivers in that company.
    ///
    /// # Panics
    /// If the backend does not compute it.
    #[must_use]
    pub fn run(&self, backend: Box<dyn Backend>, company: Company) -> Outputs {
        self.run_some(backend, company, self.rows.len())
    }

    /// The same of the first rows.
    fn run_some(&self, backend: Box<dyn Backend>, company: Company, rows: usize) -> Outputs {
        let mut driver = Driver::new(backend, std::slice::from_ref(&self.cell));
        let mut rng = Rng::new(self.seed);
        let mut lanes = Vec::new();
        for sources in self.rows.iter().take(rows) {
            let mut chain = independent(0, self.cell.outputs.len(), sources.clone(), STEPS);
            chain.stages[0].retention = company.retention;
            chain.sequential = true;
            for (input, feed) in chain.stages[0].inputs.iter_mut().zip(&self.feeds) {
                input.feedback = feed.map(|output| (0, output));
            }
            lanes.push(driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[]).lanes[0][0]);
        }
        let mut order: Vec<usize> = (0..lanes.len()).collect();
        for first in (0..STEPS).step_by(company.steps as usize) {
            (1..order.len()).for_each(|at| order.swap(at, rng.below(at as u64 + 1) as usize));
            let mut left = order.as_slice();
            while !left.is_empty() {
                let most = left.len().min(company.rows_most);
                let size = if rng.one_in(2) { most } else { rng.between(1, most as u32) as usize };
                let rows: Vec<_> = left[..size].iter().map(|row| (lanes[*row], first)).collect();
                let completed = driver.task(CellTypeId(0), &rows, company.steps);
                assert!(completed.refused.is_empty(), "body {}: no number is out of its table", self.seed);
                left = &left[size..];
            }
        }
        let numbers = |lane| driver.delivered.range((lane, 0, 0)..=(lane, u32::MAX, u32::MAX));
        let of_lane = |(row, lane)| numbers(lane).map(move |((_, output, step), bytes)| ((row, *output, *step), bytes.clone()));
        lanes.into_iter().enumerate().flat_map(of_lane).collect()
    }

    /// Runs rows alone, compares that with the reference, then runs all in that company.
    ///
    /// # Panics
    /// If a value is not near enough to the reference's, or a bit is not the same in company.
    pub fn check(&self, make: &mut dyn FnMut() -> Box<dyn Backend>, companies: &[Company]) {
        let count = ALONE.min(self.rows.len());
        let mut known = self.run_some(make(), Company::ALONE, count);
        assert_eq!(known.len(), count * self.cell.outputs.len() * STEPS as usize, "{}: everything is delivered", self.name());
        self.compare(&known, count);
        for company in companies {
            for (key, bytes) in self.run(make(), *company) {
                let expected = known.entry(key).or_insert_with(|| bytes.clone());
                let datatype = self.cell.outputs[key.1 as usize].port.datatype;
                if bytes != *expected && !(datatype == Datatype::Fp32 && are_same(&bytes, expected)) {
                    let [got, expected] = [&bytes, &*expected].map(|bytes| Elements::from_bytes(datatype, bytes));
                    panic!("{} in {company:?}: row, output and step {key:?} is {got:?}, not {expected:?}", self.name());
                }
            }
        }
    }

    fn name(&self) -> String {
        format!("body {} in {}", self.seed, self.cell.precision)
    }

    /// Each step by itself: what was fed to it is what the backend said before.
    fn compare(&self, got: &Outputs, rows: usize) {
        let elements =
            |row, output: u32, step| Elements::from_bytes(self.cell.outputs[output as usize].port.datatype, &got[&(row, output, step)]);
        for row in (0..rows).filter(|row| !is_hard(*row)) {
            for step in 0..STEPS {
                let input = |(at, feed): (usize, &Option<u32>)| match feed {
                    Some(output) if step > 0 => elements(row, *output, step - 1),
                    _ => given(&self.cell.inputs[at], &self.rows[row][at], step),
                };
                let inputs: Vec<Elements> = self.feeds.iter().enumerate().map(input).collect();
                let is_large =
                    |input: &Elements| matches!(input, Elements::Floats(values) if !values.iter().all(|value| value.abs() < 4.0));
                if inputs.iter().any(is_large) {
                    continue;
                }
                let [rounded, exact] =
                    [&self.cell, &self.exact].map(|cell| evaluate(cell, &inputs).expect("no number is out of its table"));
                for (output, (rounded, exact)) in (0..).zip(rounded.iter().zip(&exact)) {
                    let place = format!("{}: row {row}, output {output}, step {step}", self.name());
                    near(&elements(row, output, step), rounded, exact, &place);
                }
            }
        }
    }
}

/// Whether they are the same floats: which sign a CPU gives to what is not a number is the compiler's choice, on an emulated device too.
fn are_same(one: &[u8], other: &[u8]) -> bool {
    let bits = |bytes: &[u8; 4]| {
        let value = f32::from_le_bytes(*bytes);
        if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }
    };
    let [one, other] = [one, other].map(|bytes| bytes.as_chunks::<4>().0.iter().map(bits));
    one.eq(other)
}

/// Whether it is near to what the reference makes of rounded operands. What lies near to a tie may be rounded otherwise, so that it may be as far from there as that is
/// from what comes of operands that are not rounded.
fn near(got: &Elements, rounded: &Elements, exact: &Elements, place: &str) {
    // Which one is the best may differ by how sums are rounded.
    let (Elements::Floats(got), Elements::Floats(rounded), Elements::Floats(exact)) = (got, rounded, exact) else { return };
    let most = rounded.iter().fold(1.0_f64, |most, value| most.max(value.abs()));
    let by_rounding = rounded.iter().zip(exact).fold(0.0_f64, |most, (rounded, exact)| most.max((rounded - exact).abs()));
    for (at, (got, expected)) in got.iter().zip(rounded).enumerate() {
        let is_near = (got - expected).abs() <= NEAR * most + 4.0 * by_rounding;
        assert!(is_near || got == expected || most > 1e6, "{place}: element {at} of {} is {got} instead of {expected}", rounded.len());
    }
}

fn resolved(draft: Draft, precision: Precision) -> Option<Arc<TypedCell>> {
    let (cell, weights) = draft.into_parts();
    let weights: Weights = weights.into_iter().collect();
    let context =
        ResolveContext { weights: &weights, precision, tenant: "conformance", limits: CellLimits::default(), may_copy: &|_| true };
    TypedCell::resolve(&cell, &context).ok().map(Arc::new)
}

/// Whether a row may have hard floats, so that it is only compared with itself.
const fn is_hard(row: usize) -> bool {
    row % 8 == 5
}

fn source(port: &Port, row: usize, rng: &mut Rng) -> Source {
    if port.datatype == Datatype::Int64 {
        // From the end, too.
        return Source::Ints((0..STEPS).map(|_| rng.below(2 * TABLE_ROWS as u64) as i64 - TABLE_ROWS as i64).collect());
    }
    if row % 7 == 3 && rng.one_in(2) {
        return Source::Zeros;
    }
    let mut float = || if is_hard(row) && rng.one_in(6) { HARD[rng.below(9) as usize] } else { 2.0 * rng.float() };
    Source::Literal((0..elements_of(port)).flat_map(|_| float().to_le_bytes()).collect())
}

fn given(port: &Port, source: &Source, step: u32) -> Elements {
    match source {
        Source::Ints(numbers) => Elements::Integers(vec![numbers[step as usize]]),
        Source::Literal(bytes) => Elements::from_bytes(port.datatype, bytes),
        _ => Elements::Floats(vec![0.0; elements_of(port)]),
    }
}

fn elements_of(port: &Port) -> usize {
    port.shape.iter().map(|extent| *extent as usize).product()
}
