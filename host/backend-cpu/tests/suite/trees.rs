//! Trees: what a leaf adds to a node's sums is looked up by its token.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_backend::{CellTypeId, TableInfo};
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions, Kernels, Level};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::graph::{Affine, Node};
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Retention, Source};
use cellwright_cell_graph::{Datatype, Tensor};
use cellwright_conformance::cells::Draft;
use cellwright_conformance::driver::{Deliveries, Driver, growth_of, independent};
use cellwright_conformance::reference::{Elements, evaluate};
use cellwright_conformance::trees::{self, HIDDEN, TOKENS, Tree};

/// A row of what an input adds: five gates, each table's rows at cache lines.
const ROW_BYTES: u64 = (5 * HIDDEN * size_of::<f32>()).next_multiple_of(64) as u64;
/// What is said of each token, in every table.
const TOKENS_BYTES: u64 = 4 * TOKENS as u64;
/// What the leaves' own table takes, of h and c.
const LEAVES_BYTES: u64 = (TOKENS * 2 * (HIDDEN * size_of::<f32>()).next_multiple_of(64)) as u64 + TOKENS_BYTES;
const TABLE_BYTES: u64 = TOKENS as u64 * ROW_BYTES + TOKENS_BYTES;

fn domain((level, kernels): (Option<Level>, Kernels), table_bytes: u64) -> Arc<CpuDomain> {
    let (arena_bytes, table_bytes) = (Some(16 << 20), Some(table_bytes));
    CpuDomain::new(DomainOptions { arena_bytes, level, kernels, table_bytes, ..DomainOptions::default() }).expect("16 MiB are there")
}

fn worker(domain: &Arc<CpuDomain>, threads: usize) -> CpuWorker {
    CpuWorker::new(domain.clone(), CpuOptions { threads, ..CpuOptions::default() }).expect("threads start")
}

/// Every kind of CPU worker that this processor can be.
fn ways() -> Vec<((Option<Level>, Kernels), usize)> {
    let best = [1, 3].map(|threads| ((None, Kernels::Best), threads));
    let lower = [Level::Avx512Bf16, Level::Avx512, Level::Avx2, Level::Portable].map(|level| ((Some(level), Kernels::Best), 1));
    let tiles = (Level::detect() >= Level::Amx).then_some(((None, Kernels::Tiles), 2));
    best.into_iter().chain(lower).chain([((None, Kernels::Library), 1)]).chain(tiles).collect()
}

fn some_trees(count: usize, rng: &mut Rng) -> Vec<Tree> {
    (0..count).map(|_| trees::tree(12, rng)).collect()
}

#[test]
fn nodes_are_what_their_children_make_them() {
    for (how, threads) in ways() {
        for precision in Precision::ALL {
            trees::nodes_are_what_their_children_make_them(&mut || Box::new(worker(&domain(how, u64::MAX), threads)), precision);
        }
    }
}

#[test]
fn whatever_is_looked_up_and_whoever_else_is_there_no_bit_changes() {
    let mut rng = Rng::new(4);
    let some = some_trees(20, &mut rng);
    for (how, threads) in ways() {
        for precision in Precision::ALL {
            let cells = trees::tree_cells(precision, 1);
            let mut run = |domain: &Arc<CpuDomain>, rows_most| -> Deliveries {
                trees::deliveries(&mut || Box::new(worker(domain, threads)), &cells, &some, rows_most, &mut rng)
            };
            // No table, the leaves' alone, some tokens of a node's, all of them.
            let alone = run(&domain(how, 0), 1);
            for table_bytes in [0, LEAVES_BYTES, LEAVES_BYTES + TABLE_BYTES, u64::MAX] {
                let domain = domain(how, table_bytes);
                for rows_most in [20, 1, 20] {
                    assert!(
                        run(&domain, rows_most) == alone,
                        "{precision}, {how:?}, {threads} threads, {table_bytes} bytes, {rows_most} rows"
                    );
                }
            }
        }
    }
}

/// A node's children are rounded each by itself, on the device and in the reference: what one of them is does not make the other coarser.
#[test]
fn a_child_is_as_exact_as_it_is_beside_a_larger_one() {
    const COLUMNS: usize = 5;
    let mut rng = Rng::new(77);
    let weight: Vec<f32> = (0..2 * HIDDEN * COLUMNS).map(|_| rng.float()).collect();
    let large: Vec<f32> = (0..HIDDEN).map(|at| if at == 3 { 127.0 } else { 0.0 }).collect();
    let small: Vec<f32> = (0..HIDDEN).map(|_| rng.float() * 0.45).collect();
    for precision in Precision::ALL {
        let cell = Draft::new("node")
            .known("left", Datatype::Fp32, &[HIDDEN])
            .known("right", Datatype::Fp32, &[HIDDEN])
            .weight(Tensor::from_f32("w", &[2 * HIDDEN, COLUMNS], &weight))
            .operator("Concat", &["left", "right"], &["both"])
            .with("axis", 1)
            .operator("MatMul", &["both", "w"], &["y"])
            .output("y", Datatype::Fp32, &[COLUMNS])
            .at(precision)
            .resolve();
        let elements = |row: &[f32]| Elements::Floats(row.iter().copied().map(f64::from).collect());
        let expected = evaluate(&cell, &[elements(&large), elements(&small)]).expect("it takes no token");
        let literal = |row: &[f32]| Source::Literal(row.iter().flat_map(|number| number.to_ne_bytes()).collect());
        for (how, threads) in ways() {
            let mut driver = Driver::new(Box::new(worker(&domain(how, 0), threads)), std::slice::from_ref(&cell));
            let chain = independent(0, 1, vec![literal(&large), literal(&small)], 1);
            let lane = driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[]).lanes[0][0];
            driver.task(CellTypeId(0), &[(lane, 0)], 1);
            let Elements::Floats(expected) = &expected[0] else { panic!("sums are floats") };
            for (got, exact) in driver.floats(lane, 0, 0).into_iter().zip(expected) {
                let is_near = (f64::from(got) - exact).abs() <= 2e-5 * exact.abs().max(10.0);
                assert!(is_near, "{precision}, {how:?}: {got} instead of {exact}");
            }
        }
    }
}

fn figures(info: &TableInfo) -> [u64; 3] {
    [&info.bytes, &info.tokens, &info.filled].map(|figure| figure.load(Ordering::Relaxed))
}

/// On which sides of a node each token's leaf was.
fn sides(trees: &[Tree]) -> BTreeSet<(usize, i64)> {
    let of = |tree: &Tree| {
        let sides = tree.children.iter().flat_map(|children| children.iter().copied().enumerate()).collect::<Vec<_>>();
        sides.into_iter().filter_map(|(side, child)| Some((side, tree.tokens.get(child)?.rem_euclid(TOKENS as i64)))).collect::<Vec<_>>()
    };
    trees.iter().flat_map(of).collect()
}

const NODE: CellTypeId = CellTypeId(1);

/// By chain, stage, output and step.
type Delivered = BTreeMap<(usize, usize, u32, u32), Vec<u8>>;

/// What each tree's nodes deliver.
fn run(driver: &mut Driver, trees: &[Tree]) -> Vec<Delivered> {
    let placed = trees::place(driver, trees);
    driver.run_all(&placed, &mut Rng::new(6), 8);
    placed.iter().map(|placed| driver.outputs(placed)).collect()
}

#[test]
fn a_row_is_kept_of_each_token_and_side() {
    let (how, mut rng) = ((None, Kernels::Best), Rng::new(5));
    let cells = trees::tree_cells(Precision::F32, 1);
    let (first, later) = (some_trees(1, &mut rng), some_trees(20, &mut rng));
    let mut driver = Driver::new(Box::new(worker(&domain(how, u64::MAX), 1)), &cells);
    let info = driver.backend.table(NODE).expect("it may come to have tables");
    assert_eq!(figures(&info), [0; 3], "no leaf was seen");
    run(&mut driver, &first);
    assert_eq!(figures(&info)[2], sides(&first).len() as u64);
    run(&mut driver, &later);
    let all: Vec<Tree> = first.into_iter().chain(later).collect();
    assert_eq!(figures(&info), [2 * TABLE_BYTES, 2 * TOKENS as u64, sides(&all).len() as u64]);
}

/// Of half of what is left, where all tokens have no room.
#[test]
fn where_there_is_little_room_the_tokens_that_come_first_have_it() {
    let (how, mut rng) = ((None, Kernels::Best), Rng::new(5));
    let cells = trees::tree_cells(Precision::F32, 1);
    let some = some_trees(20, &mut rng);
    let domain = domain(how, LEAVES_BYTES + 2 * TABLE_BYTES - 1);
    let mut driver = Driver::new(Box::new(worker(&domain, 1)), &cells);
    run(&mut driver, &some);
    let info = driver.backend.table(NODE).expect("it may come to have tables");
    let rows = TOKENS as u64 / 2;
    assert!(sides(&some).len() as u64 > 2 * rows, "more than that came");
    assert_eq!(figures(&info), [2 * (rows * ROW_BYTES + TOKENS_BYTES), 2 * TOKENS as u64, 2 * rows]);
}

#[test]
fn tables_go_with_the_leaves_that_they_are_of() {
    let (how, mut rng) = ((None, Kernels::Best), Rng::new(5));
    let [first, other] = [1, 2].map(|seed| trees::tree_cells(Precision::F32, seed));
    let (some, few) = (some_trees(20, &mut rng), some_trees(1, &mut rng));
    // Room for no more than one kind of leaf's.
    let mut driver = Driver::new(Box::new(worker(&domain(how, LEAVES_BYTES + 2 * TABLE_BYTES), 1)), &first);
    run(&mut driver, &some);
    let info = driver.backend.table(NODE).expect("it may come to have tables");
    assert_eq!(figures(&info), [2 * TABLE_BYTES, 2 * TOKENS as u64, sides(&some).len() as u64]);
    driver.backend.unload(CellTypeId(0));
    assert_eq!(figures(&info), [0; 3], "nobody asks for them any more");
    driver.backend.load(CellTypeId(0), &other[0]).expect("another leaf");
    let delivered = run(&mut driver, &few);
    assert_eq!(figures(&info), [2 * TABLE_BYTES, 2 * TOKENS as u64, sides(&few).len() as u64], "as much as the first leaf had");
    let cells = [other[0].clone(), first[1].clone()];
    let fresh = run(&mut Driver::new(Box::new(worker(&domain(how, 0), 1)), &cells), &few);
    assert!(delivered == fresh, "nothing is left of what the first leaf added");
}

/// As when a model's next version is loaded before the one before it goes.
#[test]
fn tables_are_made_anew_when_others_have_made_room() {
    let (how, mut rng) = ((None, Kernels::Best), Rng::new(5));
    let [first, other] = [1, 2].map(|seed| trees::tree_cells(Precision::F32, seed));
    let some = some_trees(20, &mut rng);
    let domain = domain(how, LEAVES_BYTES + 2 * TABLE_BYTES);
    let before = worker(&domain, 1);
    let mut before = Driver::new(Box::new(before), &first);
    run(&mut before, &some);
    let mut driver = Driver::new(Box::new(worker(&domain, 1)), &other);
    let delivered = run(&mut driver, &some);
    let info = driver.backend.table(NODE).expect("it may come to have tables");
    assert_eq!(figures(&info), [0; 3], "nothing is left");
    drop(before);
    assert!(run(&mut driver, &some) == delivered);
    assert_eq!(figures(&info), [2 * TABLE_BYTES, 2 * TOKENS as u64, sides(&some).len() as u64]);
}

/// Nodes of two sums, which take h or c of leaves of two kinds.
#[test]
fn what_an_input_adds_is_known_by_its_leaf_its_output_and_its_token() {
    const STEPS: u32 = 30;
    let two_sums = |precision| {
        let mut rng = Rng::new(11);
        let mut random = |name: &str, shape: &[usize]| {
            let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() * 0.1).collect();
            Tensor::from_f32(name, shape, &values)
        };
        Draft::new("two sums")
            .input("left", Datatype::Fp32, &[HIDDEN])
            .input("right", Datatype::Fp32, &[HIDDEN])
            .weight(random("w", &[2 * HIDDEN, 40]))
            .weight(random("v", &[2 * HIDDEN, 33]))
            .operator("Concat", &["left", "right"], &["one"])
            .with("axis", 1)
            .operator("Concat", &["right", "left"], &["two"])
            .with("axis", 1)
            .operator("MatMul", &["one", "w"], &["a"])
            .operator("MatMul", &["two", "v"], &["b"])
            .operator("Tanh", &["a"], &["squashed"])
            .output("squashed", Datatype::Fp32, &[40])
            .output("b", Datatype::Fp32, &[33])
            .at(precision)
            .resolve()
    };
    let mut rng = Rng::new(3);
    let leaves = |cell: u32, rng: &mut Rng| {
        let tokens = (0..STEPS).map(|_| rng.below(TOKENS as u64).cast_signed() - 3).collect();
        independent(cell, 2, vec![Source::Ints(tokens)], STEPS)
    };
    let mut chains = vec![leaves(0, &mut rng), leaves(1, &mut rng)];
    chains.iter_mut().for_each(|chain| chain.stages[0].retention = Retention::All);
    for outputs in [[0, 1], [1, 0], [0, 0]] {
        let mut leaf = || Node { chain: rng.below(2) as u32, step: rng.below(u64::from(STEPS)) as u32 };
        let inputs = outputs.map(|output| Source::Nodes { stage: 0, output, of: (0..STEPS).map(|_| leaf()).collect() });
        chains.push(independent(2, 2, inputs.into(), STEPS));
    }
    let growth = Arc::new(growth_of(chains));
    for (how, threads) in ways() {
        for precision in Precision::ALL {
            let [one, other] = [1, 2].map(|seed| trees::tree_cells(precision, seed)[0].clone());
            let cells = [one, other, two_sums(precision)];
            let run = |domain: &Arc<CpuDomain>, rows: usize| {
                let mut driver = Driver::new(Box::new(worker(domain, threads)), &cells);
                let placed = driver.place(growth.clone(), &[], 0, &[]);
                driver.run_all(&[placed], &mut Rng::new(6), rows);
                driver.delivered
            };
            let alone = run(&domain(how, 0), 1);
            for table_bytes in [60_000, u64::MAX] {
                let domain = domain(how, table_bytes);
                for rows in [30, 1, 30] {
                    assert!(run(&domain, rows) == alone, "{precision}, {how:?}, {threads} threads, {table_bytes} bytes, {rows} rows");
                }
            }
        }
    }
}

/// So wide that what an input adds to a batch is computed in several runs, of 32 MiB each.
#[test]
fn a_batch_of_which_not_all_is_computed_at_once_gives_the_same_bits() {
    const COLUMNS: usize = 70_001;
    const ROWS: u32 = 150;
    let mut rng = Rng::new(8);
    let mut random = |name: &str, shape: &[usize]| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() * 0.1).collect();
        Tensor::from_f32(name, shape, &values)
    };
    let cell = Draft::new("wide node")
        .input("left", Datatype::Fp32, &[HIDDEN])
        .input("right", Datatype::Fp32, &[HIDDEN])
        .weight(random("w", &[2 * HIDDEN, COLUMNS]))
        .operator("Concat", &["left", "right"], &["both"])
        .with("axis", 1)
        .operator("MatMul", &["both", "w"], &["sums"])
        .operator("ReduceMax", &["sums"], &["most"])
        .with("axes", [1].as_slice())
        .output("most", Datatype::Fp32, &[1])
        .resolve();
    let tensors: Vec<_> = ["left", "right"].map(|name| Arc::new(random(name, &[ROWS as usize, HIDDEN]))).into();
    let run = |rows_a_task: usize| {
        let mut driver = Driver::new(Box::new(worker(&domain((None, Kernels::Best), 0), 2)), std::slice::from_ref(&cell));
        let source = |tensor| Source::Rows { tensor, at: Affine::EVERY };
        let chain = independent(0, 1, vec![source(0), source(1)], ROWS);
        let lane = driver.place(Arc::new(growth_of(vec![chain])), &tensors, 0, &[]).lanes[0][0];
        let rows: Vec<_> = (0..ROWS).map(|step| (lane, step)).collect();
        for rows in rows.chunks(rows_a_task) {
            driver.task(CellTypeId(0), rows, 1);
        }
        driver.delivered
    };
    let (together, apart) = (run(ROWS as usize), run(30));
    assert_eq!(together.len(), ROWS as usize);
    assert!(together == apart);
}
