//! The promise that matters most: a row's results are bit-identical whatever rows it runs with, at every batch size.

use std::sync::Arc;

use cellwright_cell_graph::generate::{self, Family, Rng};
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::Source;
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};

use super::driver::{Driver, Placed, delivering_everything, growth_of, independent};
use super::{Make, Scope, cells};
use cellwright_backend::{CellTypeId, LaneId};

/// Cells by themselves, then whole requests.
///
/// # Panics
/// If a bit differs.
pub fn run(make: &mut Make<'_>, scope: &Scope) {
    for precision in scope.precisions.iter().copied() {
        for cell in family_cells(precision) {
            cell_at_sizes(make, &cell, &scope.sizes);
        }
        requests_under_load(make, precision);
    }
}

/// The cells of the generator, and larger ones of the families, whose sizes are no multiples of anything.
#[must_use]
pub fn family_cells(precision: Precision) -> Vec<Arc<TypedCell>> {
    let mut found = generate::model_at(generate::shape_of(3), 3, precision).cells.clone();
    let weights = |seed: u64, shapes: &'static [(&'static str, &'static [usize])]| {
        move |name: &str| {
            let (index, (_, shape)) = shapes.iter().enumerate().find(|(_, (known, _))| *known == name).expect("a weight of the family");
            let mut rng = Rng::new(seed * 100 + index as u64);
            let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() * 0.4).collect();
            Tensor::from_f32(name, shape, &values)
        }
    };
    let lstm = weights(1, &[("weight_ih", &[180, 37]), ("weight_hh", &[180, 45]), ("bias_ih", &[180]), ("bias_hh", &[180])]);
    let gru = weights(2, &[("weight_ih", &[99, 18]), ("weight_hh", &[99, 33]), ("bias_ih", &[99]), ("bias_hh", &[99])]);
    let deep = weights(3, &[("weight_ih", &[17, 700]), ("weight_hh", &[17, 17]), ("bias_ih", &[17]), ("bias_hh", &[17])]);
    let thin = weights(4, &[("weight_ih", &[1, 2]), ("weight_hh", &[1, 1]), ("bias_ih", &[1]), ("bias_hh", &[1])]);
    let node = weights(5, &[("node.weight", &[65, 26]), ("node.bias", &[65])]);
    let head = weights(6, &[("emb.weight", &[40, 19]), ("out.weight", &[130, 19]), ("out.bias", &[130])]);
    let best = weights(7, &[("emb.weight", &[40, 19]), ("out.weight", &[530, 19]), ("few.weight", &[530, 19]), ("out.bias", &[530])]);
    let larger = [
        cells::lstm("lstm of 45", 37, 45, &lstm),
        cells::gru("gru of 33", 18, 33, &gru),
        cells::rnn("rnn over 700", 700, 17, "Tanh", &deep),
        cells::rnn("rnn of 1", 2, 1, "Relu", &thin),
        cells::tree_node(13, &node),
        cells::projection(19, 130, &head),
        cells::best_scores(5, &best),
    ];
    found.extend(larger.map(|draft| draft.at(precision).resolve()));
    found
}

fn random_literal(port: &cellwright_cell_graph::Port, rng: &mut Rng) -> Source {
    let elements: usize = port.shape.iter().map(|extent| *extent as usize).product();
    let data: Vec<u8> = (0..elements)
        .flat_map(|_| match port.datatype {
            Datatype::Fp32 => (rng.float() * 2.0).to_le_bytes().to_vec(),
            // Tokens are within every vocabulary of these cells.
            Datatype::Int64 => i64::from(rng.between(0, 3)).to_le_bytes().to_vec(),
            Datatype::Int32 => rng.between(0, 3).to_le_bytes().to_vec(),
            _ => vec![u8::from(rng.one_in(2))],
        })
        .collect();
    Source::Literal(data.into_boxed_slice())
}

fn outputs_of(driver: &Driver, lane: LaneId) -> impl Iterator<Item = &Vec<u8>> {
    driver.delivered.range((lane, 0, 0)..=(lane, u32::MAX, u32::MAX)).map(|(_, bytes)| bytes)
}

/// One cell: each of many rows alone, then in batches of those sizes.
///
/// # Panics
/// If a bit differs.
pub fn cell_at_sizes(make: &mut Make<'_>, cell: &Arc<TypedCell>, sizes: &[usize]) {
    let mut rng = Rng::new(17);
    let mut driver = Driver::new(make(), std::slice::from_ref(cell));
    let lanes: Vec<LaneId> = (0..sizes.iter().copied().max().unwrap_or(1))
        .map(|_| {
            let sources = cell.inputs.iter().map(|port| random_literal(port, &mut rng)).collect();
            let chain = independent(0, cell.outputs.len(), sources, 1);
            driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[]).lanes[0][0]
        })
        .collect();
    let mut alone: Vec<Vec<Vec<u8>>> = Vec::new();
    for lane in &lanes {
        driver.task(CellTypeId(0), &[(*lane, 0)], 1);
        alone.push(outputs_of(&driver, *lane).cloned().collect());
    }
    assert!(alone.iter().all(|outputs| outputs.len() == cell.outputs.len()), "`{}`: every output is delivered", cell.name);
    assert!(alone.iter().any(|outputs| *outputs != alone[0]), "`{}`: rows differ, or the test would see nothing", cell.name);
    let mut order: Vec<usize> = (0..lanes.len()).collect();
    for size in sizes.iter().copied() {
        driver.delivered.clear();
        for at in 0..size {
            let other = at + rng.below((order.len() - at) as u64) as usize;
            order.swap(at, other);
        }
        let rows: Vec<(LaneId, u32)> = order[..size].iter().map(|index| (lanes[*index], 0)).collect();
        driver.task(CellTypeId(0), &rows, 1);
        for (at, index) in order[..size].iter().enumerate() {
            let got = outputs_of(&driver, lanes[*index]);
            assert!(got.eq(&alone[*index]), "`{}`: row {index} at {at} in a batch of {size} is not what it is alone", cell.name);
        }
    }
}

/// Requests of every generated family: each alone on a fresh backend, then all at once in tasks of random rows.
///
/// # Panics
/// If a bit of any node's outputs differs, or a chain stops elsewhere.
pub fn requests_under_load(make: &mut Make<'_>, precision: Precision) {
    for seed in 0..4 {
        let model = generate::model_at(generate::shape_of(seed), seed, precision);
        let mut rng = Rng::new(1000 + seed);
        let mut growths = Vec::new();
        for number in 0..36 {
            let family = Family::ALL[number % Family::ALL.len()];
            let (growth, tensors) = generate::growth_of(&model, family, rng.between(1, 12), &mut rng);
            growths.push((delivering_everything(&generate::unfold(&model, growth, &tensors)), tensors));
        }
        let mut alone = Vec::new();
        for (growth, tensors) in &growths {
            let mut driver = Driver::new(make(), &model.cells);
            let placed = driver.place(growth.clone(), tensors, 0, &[]);
            driver.run_all(std::slice::from_ref(&placed), &mut rng, 1);
            alone.push(driver.outputs(&placed));
        }
        for round in 0..3 {
            let mut driver = Driver::new(make(), &model.cells);
            let placed: Vec<Placed> = growths.iter().map(|(growth, tensors)| driver.place(growth.clone(), tensors, 0, &[])).collect();
            driver.run_all(&placed, &mut rng, [36, 7, 3][round]);
            for (number, request) in placed.iter().enumerate() {
                assert!(!alone[number].is_empty());
                assert!(driver.outputs(request) == alone[number], "seed {seed}, request {number} in {precision} is not what it is alone");
            }
        }
    }
}
