//! Every operation and attribute against the 64-bit reference, on random shapes, odd sizes and rows of the values that are hard.

use std::sync::Arc;

use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::{Compute, Precision};
use cellwright_cell_graph::unfolded::Source;
use cellwright_cell_graph::{Datatype, Port, Tensor, TypedCell};

use super::cells::Draft;
use super::driver::{Driver, growth_of, independent};
use super::{Make, Scope, Tolerance};
use crate::reference::{Elements, Reference};
use cellwright_backend::CellTypeId;

mod cases;

/// Rows of each case.
const ROWS: usize = 37;

/// What inputs a case gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inputs {
    /// Random, and everything that 32-bit floats have at their ends.
    Extreme,
    /// Random, with zeros, infinities, NaN, denormals and ties.
    Special,
    /// Random and finite.
    Tame,
    /// Integers from 0 up to this.
    Below(u32),
}

/// A cell, its inputs, and how far beyond the common tolerance it may be.
struct Case {
    draft: Draft,
    inputs: Inputs,
    slack: f64,
}

/// Makes what computes a cell's rows in 64 bits.
type MakeReference = for<'a> fn(&'a TypedCell) -> Reference<'a>;

/// Runs every case, and those with products again at every other precision: what is rounded is the same for everybody, so results are as near.
///
/// # Panics
/// If a result is not near enough to the reference's.
pub fn run(make: &mut Make<'_>, tolerance: Tolerance, scope: &Scope) {
    run_against(|cell| Reference::new(cell), make, tolerance, scope);
}

/// The same for a backend that multiplies 32-bit floats in tf32.
///
/// # Panics
/// If a result is not near enough to what the reference computes of operands that are rounded so.
pub fn run_in_tf32(make: &mut Make<'_>, tolerance: Tolerance, scope: &Scope) {
    run_against(|cell| Reference::in_tf32(cell), make, tolerance, scope);
}

fn run_against(reference: MakeReference, make: &mut Make<'_>, tolerance: Tolerance, scope: &Scope) {
    for precision in scope.precisions.iter().copied() {
        let mut cases: Vec<(Arc<TypedCell>, Case)> =
            cases::all().into_iter().map(|case| (case.draft.clone().at(precision).resolve(), case)).collect();
        cases.retain(|(cell, _)| precision == Precision::F32 || has_products(cell));
        assert!(!cases.is_empty());
        let cells: Vec<Arc<TypedCell>> = cases.iter().map(|(cell, _)| cell.clone()).collect();
        let mut driver = Driver::new(make(), &cells);
        let mut rng = Rng::new(42);
        for (index, (cell, case)) in cases.iter().enumerate() {
            check(&mut driver, (index as u32, cell), (reference, tolerance.times(case.slack)), case.inputs, &mut rng);
        }
    }
}

fn has_products(cell: &TypedCell) -> bool {
    cell.operations.iter().any(|operation| matches!(operation.compute, Compute::Linear { .. }))
}

fn check(
    driver: &mut Driver,
    (index, cell): (u32, &Arc<TypedCell>),
    (reference, tolerance): (MakeReference, Tolerance),
    inputs: Inputs,
    rng: &mut Rng,
) {
    let rows: Vec<Vec<Elements>> = (0..ROWS).map(|row| cell.inputs.iter().map(|port| elements(port, inputs, row, rng)).collect()).collect();
    let tensors: Vec<Arc<Tensor>> = cell.inputs.iter().enumerate().map(|(input, port)| Arc::new(stacked(port, input, &rows))).collect();
    let at = cellwright_cell_graph::graph::Affine::EVERY;
    let sources = (0..cell.inputs.len()).map(|tensor| Source::Rows { tensor: tensor as u32, at }).collect();
    let growth = Arc::new(growth_of(vec![independent(index, cell.outputs.len(), sources, ROWS as u32)]));
    let request = driver.place(growth, &tensors, 0, &[]);
    let lane = request.lanes[0][0];
    // In two tasks, so that odd numbers of rows are seen too.
    for part in [0..12, 12..ROWS as u32] {
        let rows: Vec<_> = part.map(|step| (lane, step)).collect();
        let completed = driver.task(CellTypeId(index), &rows, 1);
        assert!(completed.refused.is_empty(), "`{}` refused {:?}", cell.name, completed.refused);
    }
    let reference = reference(cell);
    for (row, inputs) in rows.iter().enumerate() {
        let expected = reference.evaluate(inputs).expect("no index is out of range");
        for (output, (expected, of)) in expected.iter().zip(&cell.outputs).enumerate() {
            let bytes = &driver.delivered[&(lane, output as u32, row as u32)];
            let got = Elements::from_bytes(of.port.datatype, bytes);
            let place = || {
                let inputs: String = format!("{inputs:?}").chars().take(400).collect();
                format!("`{}` in {}, output {output}, row {row}: {inputs}", cell.name, cell.precision)
            };
            compare(expected, &got, tolerance, &place);
        }
    }
}

pub(crate) fn compare(expected: &Elements, got: &Elements, tolerance: Tolerance, place: &dyn Fn() -> String) {
    match (expected, got) {
        (Elements::Floats(expected), Elements::Floats(got)) => {
            for (at, (exact, got)) in expected.iter().zip(got).enumerate() {
                assert!(tolerance.accepts(*exact, *got), "{}: element {at} is {got} instead of {exact}", place());
            }
        }
        _ => assert_eq!(expected, got, "{}", place()),
    }
}

fn stacked(port: &Port, input: usize, rows: &[Vec<Elements>]) -> Tensor {
    let data = rows.iter().flat_map(|row| row[input].to_bytes(port.datatype)).collect();
    let shape = std::iter::once(rows.len()).chain(port.shape.iter().map(|extent| *extent as usize)).collect();
    Tensor { name: port.name.clone(), datatype: port.datatype, shape, data }
}

/// Ends of the range, and where exponentials overflow and vanish.
const EXTREMES: [f32; 24] = [
    0.0,
    -0.0,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    1e-40,
    -1e-40,
    f32::MIN_POSITIVE,
    -f32::MIN_POSITIVE,
    f32::MAX,
    f32::MIN,
    1.0,
    -1.0,
    88.0,
    -87.0,
    88.8,
    -88.8,
    104.5,
    -104.5,
    1e20,
    -1e20,
    0.625,
    0.624_999,
    -8.7,
];

/// The first of [`EXTREMES`] that do not overflow when they are squared and summed.
const SPECIALS: usize = 9;

fn elements(port: &Port, inputs: Inputs, row: usize, rng: &mut Rng) -> Elements {
    let count = port.shape.iter().map(|extent| *extent as usize).product::<usize>();
    match port.datatype {
        Datatype::Fp32 => Elements::Floats((0..count).map(|_| f64::from(float(inputs, row, rng))).collect()),
        Datatype::Bool => Elements::Integers((0..count).map(|_| i64::from(rng.one_in(2))).collect()),
        datatype => Elements::Integers((0..count).map(|_| integer(inputs, datatype, row, rng)).collect()),
    }
}

fn float(inputs: Inputs, row: usize, rng: &mut Rng) -> f32 {
    let plain = rng.float() * [3.0, 12.0, 0.1][row % 3];
    match (inputs, row % 4) {
        (Inputs::Tame | Inputs::Below(_), _) | (_, 0) => plain,
        // Ties.
        (_, 1) => f32::from(rng.between(0, 3) as u8) - 1.0,
        (Inputs::Extreme, _) => EXTREMES[rng.below(EXTREMES.len() as u64) as usize],
        // One hard value among plain ones, so that not every sum is NaN.
        (Inputs::Special, _) if rng.one_in(8) => EXTREMES[rng.below(SPECIALS as u64) as usize],
        (Inputs::Special, _) => plain,
    }
}

fn integer(inputs: Inputs, datatype: Datatype, row: usize, rng: &mut Rng) -> i64 {
    if let Inputs::Below(end) = inputs {
        return i64::from(rng.below(u64::from(end)) as u32);
    }
    let small = i64::from(rng.between(0, 6)) - 3;
    let number = if row.is_multiple_of(3) { small } else { rng.below(u64::MAX).cast_signed() };
    match datatype {
        Datatype::Uint8 => i64::from(number as u8),
        Datatype::Int32 => i64::from(number as i32),
        _ => number,
    }
}

/// The extents of a random shape, odd ones among them.
fn shape(rng: &mut Rng, rank: usize, most: u32) -> Vec<usize> {
    (0..rank).map(|_| rng.between(1, most) as usize).collect()
}

fn tensor(name: &str, shape: &[usize], rng: &mut Rng) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() * 2.0).collect();
    Tensor::from_f32(name, shape, &values)
}
