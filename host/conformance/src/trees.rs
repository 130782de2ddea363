//! Trees whose nodes are wide: whatever a backend looks up of leaves' contributions, each node is what its children make it, and no bit of it depends on who
//! else was there.

use std::sync::Arc;

use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::graph::Node;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Retention, Source, UnfoldedChain};
use cellwright_cell_graph::{Tensor, TypedCell};

use super::cells;
use super::driver::{Deliveries, Driver, Placed, delivering_everything, growth_of, independent};
use super::{Make, Tolerance};
use crate::reference::{Elements, evaluate};

/// Elements of a state: more than what is worth being taken input by input (`cellwright_cell_graph::hoist::by_input`).
pub const HIDDEN: usize = 131;
/// Few, so that trees have some in common.
pub const TOKENS: usize = 9;

/// A leaf, of a token, and an inner node of two children, whose weights are by that number.
#[must_use]
pub fn tree_cells(precision: Precision, seed: u64) -> [Arc<TypedCell>; 2] {
    let weight = |name: &str| {
        let shape: &[usize] = match name {
            "emb.weight" => &[TOKENS, 10],
            "leaf.weight" => &[3 * HIDDEN, 10],
            "leaf.bias" => &[3 * HIDDEN],
            "node.weight" => &[5 * HIDDEN, 2 * HIDDEN],
            _ => &[5 * HIDDEN],
        };
        let mut rng = Rng::new(seed * 100 + name.len() as u64);
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() * 0.2).collect();
        Tensor::from_f32(name, shape, &values)
    };
    [cells::tree_leaf(HIDDEN, &weight), cells::tree_node(HIDDEN, &weight)].map(|draft| draft.at(precision).resolve())
}

/// Tokens of leaves, and children of inner nodes: leaves by number, and inner nodes behind them; the last node is the root.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Of each leaf.
    pub tokens: Vec<i64>,
    /// Of each inner node, each of an earlier one.
    pub children: Vec<[usize; 2]>,
}

/// A tree of so many leaves at most, two at least, any two subtrees of which may be joined first.
#[must_use]
pub fn tree(leaves_most: u32, rng: &mut Rng) -> Tree {
    let leaves = rng.between(2, leaves_most) as usize;
    // Some count from the end.
    let tokens = (0..leaves).map(|_| rng.below(2 * TOKENS as u64).cast_signed() - TOKENS as i64).collect();
    let mut roots: Vec<usize> = (0..leaves).collect();
    let mut children = Vec::new();
    while roots.len() > 1 {
        let mut take = || roots.swap_remove(rng.below(roots.len() as u64) as usize);
        children.push([take(), take()]);
        roots.push(leaves + children.len() - 1);
    }
    Tree { tokens, children }
}

fn chains_of(tree: &Tree) -> Vec<UnfoldedChain> {
    let leaves = tree.tokens.len();
    let node = |number: usize| match number.checked_sub(leaves) {
        None => Node { chain: 0, step: number as u32 },
        Some(inner) => Node { chain: 1, step: inner as u32 },
    };
    let child = |side: usize, output| Source::Nodes { stage: 0, output, of: tree.children.iter().map(|of| node(of[side])).collect() };
    let inner = vec![child(0, 0), child(0, 1), child(1, 0), child(1, 1)];
    let mut chains = vec![
        independent(0, 2, vec![Source::Ints(tree.tokens.clone())], leaves as u32),
        independent(1, 2, inner, tree.children.len() as u32),
    ];
    chains.iter_mut().for_each(|chain| chain.stages[0].retention = Retention::All);
    chains
}

/// Puts trees into a driver that has the two cells.
pub fn place(driver: &mut Driver, trees: &[Tree]) -> Vec<Placed> {
    trees.iter().map(|tree| driver.place(delivering_everything(&growth_of(chains_of(tree))), &[], 0, &[])).collect()
}

/// Everything that the nodes of trees deliver, run in tasks of so many rows at most, at random.
#[must_use]
pub fn deliveries(make: &mut Make<'_>, cells: &[Arc<TypedCell>], trees: &[Tree], rows_most: usize, rng: &mut Rng) -> Deliveries {
    let mut driver = Driver::new(make(), cells);
    let placed = place(&mut driver, trees);
    driver.run_all(&placed, rng, rows_most);
    driver.delivered
}

/// Each node against the reference, given what the backend made of its children.
///
/// # Panics
/// If one is not near enough.
pub fn nodes_are_what_their_children_make_them(make: &mut Make<'_>, precision: Precision) {
    let mut rng = Rng::new(21);
    let cells = tree_cells(precision, 1);
    let trees: Vec<Tree> = (0..4).map(|_| tree(7, &mut rng)).collect();
    let mut driver = Driver::new(make(), &cells);
    let placed = place(&mut driver, &trees);
    driver.run_all(&placed, &mut rng, 5);
    let wide = Tolerance { absolute: precision.tolerance(), relative: precision.tolerance() };
    let tolerance = if precision == Precision::F32 { Tolerance::default().times(4.0) } else { wide };
    for (tree, placed) in trees.iter().zip(&placed) {
        let leaves = tree.tokens.len();
        let state = |number: usize, output| {
            let (chain, step) = number.checked_sub(leaves).map_or((0, number), |inner| (1, inner));
            driver.floats(placed.lanes[chain][0], output, step as u32)
        };
        for (inner, children) in tree.children.iter().enumerate() {
            let inputs = children.iter().flat_map(|child| [state(*child, 0), state(*child, 1)]);
            let inputs: Vec<Elements> = inputs.map(|values| Elements::Floats(values.into_iter().map(f64::from).collect())).collect();
            let expected = evaluate(&cells[1], &inputs).expect("a node takes no token");
            for (output, expected) in expected.iter().enumerate() {
                let Elements::Floats(expected) = expected else { panic!("states are floats") };
                for (at, (got, exact)) in state(leaves + inner, output as u32).iter().zip(expected).enumerate() {
                    assert!(
                        tolerance.accepts(*exact, f64::from(*got)),
                        "{precision}: element {at} of output {output}: {got} instead of {exact}"
                    );
                }
            }
        }
    }
}
