//! Denormal numbers are zeros to every operation, in whatever company a row runs.
//!
//! Each cell makes its results so large that a device which takes a denormal number for what it is would be far off: in inputs, weights, biases and
//! tables, in products and sums that come out denormal, and in states that decay until they are.

use std::sync::Arc;

use cellwright_backend::{CellTypeId, LaneId};
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Retention, Source};
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};

use super::cells::Draft;
use super::driver::{Driver, growth_of, independent};
use super::{Make, Scope, Tolerance};
use crate::reference::{Elements, Reference};

/// Elements of every value: whole vectors of each kind, and some that are left.
const WIDTH: usize = 45;
/// Steps of a chain with a state, and of another.
const STEPS: (u32, u32) = (32, 2);
/// A denormal number, and what makes it large.
const DENORMAL: f32 = 3e-40;
const LARGE: f32 = 1e30;
/// What takes a number of size 1 below the least normal one.
const SMALL: f32 = 2e-20;
/// An element of a row, by its place.
type Row = fn(usize) -> f32;

/// Makes what computes a cell's rows in 64 bits.
type MakeReference = for<'a> fn(&'a TypedCell) -> Reference<'a>;

/// What a row begins with: plain numbers, denormal ones, either, and what lies around the least normal one.
const ROWS: [Row; 5] = [
    |at| 1.0 + at as f32 / 64.0,
    |at| if at % 3 == 0 { -DENORMAL } else { DENORMAL / (1 + at) as f32 },
    |at| if at % 4 == 1 { DENORMAL } else { 0.5 - at as f32 / 128.0 },
    |at| [f32::MIN_POSITIVE, -f32::MIN_POSITIVE, f32::MIN_POSITIVE.next_down(), f32::from_bits(1), 0.0, -0.0][at % 6],
    |_| 0.0,
];

fn tensor(name: &str, shape: &[usize], of: impl Fn(usize) -> f32) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product()).map(of).collect();
    Tensor::from_f32(name, shape, &values)
}

/// A cell of one state, with `large` to multiply by.
fn draft(name: &str) -> Draft {
    let draft = Draft::new(name).input("x", Datatype::Fp32, &[WIDTH]).weight(tensor("large", &[1], |_| LARGE));
    draft.weight(tensor("zero", &[1], |_| 0.0))
}

/// With that value, made large twice, as its output.
fn shown(draft: Draft, value: &str) -> Draft {
    let draft = draft.operator("Mul", &[value, "large"], &["once"]).operator("Mul", &["once", "large"], &["shown"]);
    draft.output("shown", Datatype::Fp32, &[WIDTH])
}

fn cells(precision: Precision) -> Vec<Arc<TypedCell>> {
    let full = [WIDTH, WIDTH];
    let diagonal = |value: f32| move |at: usize| if at / WIDTH == at % WIDTH { value } else { 0.0 };
    let product = |name: &str, weight: Tensor| shown(draft(name).weight(weight).operator("MatMul", &["x", "w"], &["y"]), "y");
    let mut all = vec![
        shown(draft("an input"), "x"),
        shown(draft("a sum").operator("Add", &["x", "zero"], &["y"]), "y"),
        shown(draft("a choice").operator("Relu", &["x"], &["y"]), "y"),
        shown(draft("what is moved").operator("Concat", &["x"], &["y"]).with("axis", 1), "y"),
        shown(draft("a constant").weight(tensor("c", &[WIDTH], |_| DENORMAL)).operator("Mul", &["x", "c"], &["y"]), "y"),
        shown(
            draft("a result").weight(tensor("c", &[1], |_| SMALL)).operator("Mul", &["x", "c"], &["z"]).operator(
                "Mul",
                &["z", "c"],
                &["y"],
            ),
            "y",
        ),
        shown(draft("a difference").weight(tensor("c", &[1], |_| f32::MIN_POSITIVE)).operator("Sub", &["x", "c"], &["y"]), "y"),
        shown(
            draft("a vanishing function").weight(tensor("c", &[1], |_| -88.5)).operator("Mul", &["x", "c"], &["z"]).operator(
                "Exp",
                &["z"],
                &["y"],
            ),
            "y",
        ),
        product("a product of denormal rows", tensor("w", &full, |at| 3e4 / (1 + at % 5) as f32)),
        product("a product with denormal weights", tensor("w", &full, |at| DENORMAL * (at % 7) as f32 / 7.0)),
        product("a product that comes out denormal", tensor("w", &full, diagonal(2e-38))),
        shown(
            draft("products of products that come out denormal")
                .weight(tensor("w", &full, diagonal(SMALL)))
                .operator("MatMul", &["x", "w"], &["z"])
                .operator("MatMul", &["z", "w"], &["y"]),
            "y",
        ),
        shown(
            draft("a denormal bias").weight(tensor("w", &full, |_| 0.0)).weight(tensor("b", &[WIDTH], |_| DENORMAL)).operator(
                "Gemm",
                &["x", "w", "b"],
                &["y"],
            ),
            "y",
        ),
    ];
    let compared = draft("a comparison").operator("Equal", &["x", "zero"], &["is"]).operator("Greater", &["x", "zero"], &["above"]);
    let compared = compared.operator("Cast", &["x"], &["truth"]).with("to", "BOOL").output("truth", Datatype::Bool, &[WIDTH]);
    all.push(compared.output("is", Datatype::Bool, &[WIDTH]).output("above", Datatype::Bool, &[WIDTH]));
    let best = draft("the best").operator("ArgMax", &["x"], &["at"]).with("axis", 1).output("at", Datatype::Int64, &[1]);
    let best = best.operator("TopK", &["x"], &["few", "order"]).with("axis", 1).with("k", 9).output("order", Datatype::Int64, &[9]);
    all.push(best.output("few", Datatype::Fp32, &[9]));
    let functions = draft("functions with a pole").operator("Log", &["x"], &["y"]).output("y", Datatype::Fp32, &[WIDTH]);
    let functions =
        functions.weight(tensor("c", &[1], |_| -1.0)).operator("Pow", &["x", "c"], &["p"]).output("p", Datatype::Fp32, &[WIDTH]);
    all.push(functions.operator("Div", &["large", "x"], &["d"]).output("d", Datatype::Fp32, &[WIDTH]));
    // A state is the first output of its cell.
    let decay = draft("a state that decays").weight(tensor("c", &[1], |_| 0.03)).operator("Mul", &["x", "c"], &["h"]);
    all.push(shown(decay.output("h", Datatype::Fp32, &[WIDTH]), "h"));
    let decay =
        draft("a state that a product lets decay").weight(tensor("w", &full, diagonal(1.0 / 32.0))).operator("MatMul", &["x", "w"], &["h"]);
    all.push(shown(decay.output("h", Datatype::Fp32, &[WIDTH]), "h"));
    all.into_iter().map(|draft| draft.at(precision).resolve()).collect()
}

/// Runs every cell over chains of every kind of row, alone and together, and compares each step with the reference.
///
/// # Panics
/// If a result is not near enough to the reference's, or a bit is not the same in company.
pub fn run(make: &mut Make<'_>, scope: &Scope) {
    run_against(|cell| Reference::new(cell), make, scope);
}

/// The same for a backend that multiplies 32-bit floats in tf32.
///
/// # Panics
/// As [`run`].
pub fn run_in_tf32(make: &mut Make<'_>, scope: &Scope) {
    run_against(|cell| Reference::in_tf32(cell), make, scope);
}

fn run_against(reference: MakeReference, make: &mut Make<'_>, scope: &Scope) {
    for precision in scope.precisions.iter().copied() {
        let cells = cells(precision);
        let mut driver = Driver::new(make(), &cells);
        for (index, cell) in (0..).zip(&cells) {
            let alone: Vec<LaneId> = ROWS.iter().map(|row| place(&mut driver, index, cell, *row)).collect();
            for (lane, step) in alone.iter().flat_map(|lane| (0..steps(cell)).map(move |step| (*lane, step))) {
                driver.task(CellTypeId(index), &[(lane, step)], 1);
            }
            // Enough of them for tiles of rows, and steps that run as one task.
            let together: Vec<LaneId> = (0..7 * ROWS.len()).map(|row| place(&mut driver, index, cell, ROWS[row % ROWS.len()])).collect();
            let rows: Vec<(LaneId, u32)> = together.iter().map(|lane| (*lane, 0)).collect();
            driver.task(CellTypeId(index), &rows, steps(cell));
            for (row, lane) in together.iter().enumerate() {
                let bits_of = |lane: LaneId| {
                    let delivered = driver.delivered.range((lane, 0, 0)..=(lane, u32::MAX, u32::MAX));
                    delivered.map(|((_, output, step), bytes)| (*output, *step, bytes))
                };
                let is_same = bits_of(*lane).eq(bits_of(alone[row % ROWS.len()]));
                assert!(is_same, "`{}` in {precision}: row {row} is not what it is alone", cell.name);
            }
            let reference = reference(cell);
            alone.iter().zip(ROWS).for_each(|(lane, row)| compare(&driver, (cell, &reference), (*lane, row)));
        }
    }
}

/// Whether a cell's first output is its state, which feeds the next step.
fn has_state(cell: &TypedCell) -> bool {
    cell.outputs.iter().any(|output| output.port.name == "h")
}

fn steps(cell: &TypedCell) -> u32 {
    if has_state(cell) { STEPS.0 } else { STEPS.1 }
}

fn place(driver: &mut Driver, index: u32, cell: &TypedCell, row: Row) -> LaneId {
    let bytes = (0..WIDTH).map(row).flat_map(f32::to_le_bytes).collect();
    let mut chain = independent(index, cell.outputs.len(), vec![Source::Literal(bytes)], steps(cell));
    chain.stages[0].retention = Retention::Double;
    chain.sequential = true;
    chain.stages[0].inputs[0].feedback = has_state(cell).then_some((0, 0));
    driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[]).lanes[0][0]
}

/// Each step by itself: what was fed to it is what the backend said before.
fn compare(driver: &Driver, (cell, reference): (&TypedCell, &Reference<'_>), (lane, row): (LaneId, Row)) {
    let tolerance = Tolerance { absolute: 1e-3, relative: 1e-3 };
    for step in 0..steps(cell) {
        let input: Vec<f32> = if has_state(cell) && step > 0 { driver.floats(lane, 0, step - 1) } else { (0..WIDTH).map(row).collect() };
        let expected =
            reference.evaluate(&[Elements::Floats(input.iter().copied().map(f64::from).collect())]).expect("nothing is looked up");
        for (output, (expected, of)) in (0..).zip(expected.iter().zip(&cell.outputs)) {
            let got = Elements::from_bytes(of.port.datatype, &driver.delivered[&(lane, output, step)]);
            let place = || format!("`{}` in {}, output `{}`, step {step} of {input:?}", cell.name, cell.precision, of.port.name);
            match (expected, &got) {
                (Elements::Floats(expected), Elements::Floats(got)) => {
                    for (at, (expected, got)) in expected.iter().zip(got).enumerate() {
                        assert!(tolerance.accepts(*expected, *got), "{}: element {at} is {got} instead of {expected}", place());
                    }
                }
                _ => assert_eq!(*expected, got, "{}", place()),
            }
        }
    }
}
