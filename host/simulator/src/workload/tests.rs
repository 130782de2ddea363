//! Whether requests look like what they are taken for.

use cellwright_cell_graph::generate::{self, Family, Rng};
use cellwright_cell_graph::graph::Node;
use cellwright_cell_graph::unfolded::{Dependency, Source, UnfoldedChain, UnfoldedStage};

use super::{Decoding, Ids, Layers, Lengths, Pairs, Random, Tree, Trees, UnfoldedGrowth, Workload, graphs};

#[test]
fn sentences_are_as_long_as_the_papers() {
    let mut random = Random::new(1);
    let lengths: Vec<u32> = (0..100_000).map(|_| Lengths::EUROPARL.draw(&mut random)).collect();
    let mean = lengths.iter().map(|length| f64::from(*length)).sum::<f64>() / lengths.len() as f64;
    assert!((23.7..24.5).contains(&mean), "{mean}");
    let long = lengths.iter().filter(|length| **length > 100).count();
    assert!((500..1200).contains(&long), "{long}");
    assert!(lengths.iter().all(|length| (1..=330).contains(length)));
    let clipped = Lengths::EUROPARL.clipped(50);
    assert!((0..10_000).map(|_| clipped.draw(&mut random)).all(|length| length <= 50));
}

#[test]
fn random_trees_are_as_large_and_as_deep_as_the_treebanks() {
    let trees = Trees::treebank(7);
    let (leaves, depth) = trees.means();
    assert!((18.8..19.6).contains(&leaves), "{leaves}");
    assert!((9.5..10.3).contains(&depth), "{depth}");
    assert_eq!(trees, Trees::treebank(7));
    assert_ne!(trees, Trees::treebank(8));
}

#[test]
fn a_list_is_drawn_from_as_often_as_it_says() {
    let lengths = Lengths::from_list("l.csv", "length,count\n3,1\n7,3\n").unwrap();
    let mut random = Random::new(1);
    let sevens = (0..4000).filter(|_| lengths.draw(&mut random) == 7).count();
    assert!((2850..3150).contains(&sevens), "{sevens}");
    assert_eq!(Pairs::from_list("p", "3,4\n"), Ok(Pairs::Listed(vec![(3, 4)])));
    assert_eq!(Trees::from_list("t", "leaves\tpreorder\n3\tBLBLL\n").unwrap().shapes()[0].children, [[1, 2], [0, 3]]);
}

#[test]
fn a_preorder_is_a_tree_and_nothing_else_is() {
    assert_eq!(Tree::preorder("L"), Some(Tree { leaves: 1, children: vec![] }));
    // ((0 1) 2): the inner pair is internal node 3.
    assert_eq!(Tree::preorder("BBLLL"), Some(Tree { leaves: 3, children: vec![[0, 1], [3, 2]] }));
    for text in ["", "B", "LL", "BL", "BLLL", "BxL"] {
        assert_eq!(Tree::preorder(text), None, "{text}");
    }
    assert_eq!(Tree::balanced(3).children, [[0, 1], [3, 2]]);
    assert_eq!(Tree::balanced(20).children.len(), 19);
}

#[test]
fn what_is_wrong_with_a_list_is_said_with_its_line_and_field() {
    let lengths = |text: &str| Lengths::from_list("l.csv", text).unwrap_err().to_string();
    assert_eq!(lengths("length\n3\n0\n"), "l.csv: line 3: length: `0` is no length from 1 to 100000");
    assert_eq!(lengths("rubbish\n3\n"), "l.csv: line 1: length: `rubbish` is no length from 1 to 100000");
    assert_eq!(lengths("3,1,1\n"), "l.csv: line 1: columns: `1` is one too many: a line has length,count at most");
    assert_eq!(lengths("3,many"), "l.csv: line 1: count: `many` is no number of requests");
    assert_eq!(lengths("length\n"), "l.csv: it holds no length");
    assert_eq!(
        Pairs::from_list("p.csv", "1,2\n5\n").unwrap_err().to_string(),
        "p.csv: line 2: target length: `` is no length from 1 to 100000"
    );
    let pairs = |text: &str| Pairs::from_list("p.csv", text).unwrap_err().to_string();
    assert_eq!(pairs("a,b\n1,2\n"), "p.csv: line 1: source length: `a` is no length from 1 to 100000");
    assert_eq!(pairs("source,target\n1,2,3\n"), "p.csv: line 2: columns: `3` is one too many: a line has source,target at most");
    assert_eq!(Trees::from_list("t.tsv", "words\nBLL\n").unwrap_err().to_string(), "t.tsv: line 1: tree: `words` is no tree like BLBLL");
    assert_eq!(Trees::from_list("t.tsv", "BLL\nBL\n").unwrap_err().to_string(), "t.tsv: line 2: tree: `BL` is no tree like BLBLL");
}

#[test]
fn every_kind_of_request_has_the_nodes_it_should() {
    let mut random = Random::new(3);
    let mut nodes = |mut workload: Workload| workload.draw(&mut random).nodes();
    assert_eq!(nodes(Workload::lstm(Lengths::Fixed(24))), 24);
    assert_eq!(nodes(Workload::trees(&Trees::identical(16))), 31);
    let pairs = Pairs::Listed(vec![(5, 7)]);
    assert_eq!(nodes(Workload::seq2seq(pairs.clone(), Decoding::Known)), 12);
    assert_eq!(nodes(Workload::seq2seq(pairs.clone(), Decoding::Stops { extra: 50 })), 12);
    assert_eq!(nodes(Workload::layers(Layers::ResNet, pairs.clone())), 50);
    assert_eq!(nodes(Workload::layers(Layers::DeepSpeech, pairs.clone())), 2 + 5 * 5 + 2);
    assert_eq!(nodes(Workload::layers(Layers::Transformer, pairs.clone())), 6 + 7 * 7);
    assert_eq!(nodes(Workload::layers(Layers::Gnmt, pairs.clone())), 4 * 5 + 5 * 7);
    assert_eq!(nodes(Workload::layers(Layers::Bert, pairs.clone())), 1 + 5);
    assert_eq!(nodes(Workload::layers(Layers::UNet, pairs)), 4 + 8 + 4);
}

/// Where a workload says that it has no use for a length, its requests are the same with another, and elsewhere they are not.
#[test]
fn what_a_workload_says_it_reads_of_lengths_makes_a_difference() {
    let pairs = || Pairs::EUROPARL;
    let layers = [Layers::ResNet, Layers::DeepSpeech, Layers::Transformer, Layers::Gnmt, Layers::Bert, Layers::UNet];
    let layers = layers.map(|layers| Workload::layers(layers, pairs()));
    let others = [
        Workload::lstm(Lengths::EUROPARL),
        Workload::trees(&Trees::treebank(1)),
        Workload::seq2seq(pairs(), Decoding::Known),
        Workload::seq2seq(pairs(), Decoding::Stops { extra: 50 }),
    ];
    for mut workload in layers.into_iter().chain(others) {
        let reads = workload.reads_lengths();
        let mut nodes = |source, target| workload.of_lengths(source, target, &mut Random::new(1)).nodes();
        let differ = (nodes(5, 7) != nodes(6, 7), nodes(5, 7) != nodes(5, 8));
        assert_eq!((reads.source, reads.target), differ, "{}", workload.name());
    }
}

#[test]
fn a_batch_limit_holds_for_further_cells_too() {
    let workload = Workload::seq2seq(Pairs::EUROPARL, Decoding::Known);
    let limits = |limits: &[u32]| workload.model(Ids::default(), limits).cells.iter().map(|cell| cell.batch.max).collect::<Vec<_>>();
    assert_eq!(limits(&[512, 256]), [512, 256]);
    assert_eq!(limits(&[256]), [256, 256]);
    assert_eq!(limits(&[]), [64, 64]);
}

/// What scheduling reads of a stage, but for which cell it is and how each input is called.
fn shape(stage: &UnfoldedStage) -> impl PartialEq + std::fmt::Debug + use<> {
    let by_name = |depends: &Dependency| matches!(depends, Dependency::Nodes { .. });
    let others: Vec<Dependency> = stage.depends.iter().filter(|depends| !by_name(depends)).cloned().collect();
    let named = stage.depends.iter().filter(|depends| by_name(depends)).count();
    (others, named, stage.named_producers.clone(), stage.successors.clone(), stage.retention, stage.grouping.clone())
}

/// Of a growth, the chains in front.
fn assert_alike(ours: &UnfoldedGrowth, checked: &UnfoldedGrowth) {
    for (ours, checked) in ours.chains.iter().zip(&checked.chains) {
        let facts = |chain: &UnfoldedChain| (chain.length, chain.sequential, chain.stages.iter().map(shape).collect::<Vec<_>>());
        assert_eq!(facts(ours), facts(checked));
    }
}

/// A request made here is the request that the checker would make of a plugin's answer.
#[test]
fn graphs_are_those_that_the_checker_makes() {
    let model = generate::model(5);
    let checked = |family: Family, steps: u32, seed: u64| {
        let (growth, tensors) = generate::growth_of(&model, family, steps, &mut Rng::new(seed));
        generate::unfold(&model, growth, &tensors)
    };
    for steps in [1, 2, 9] {
        let lstm = checked(Family::Lstm, steps, 1);
        assert_alike(&graphs::lstm(steps), &lstm);
    }
    for steps in [2, 3, 16] {
        let tree = checked(Family::Tree, steps, u64::from(steps));
        let children = children_of(&tree, steps);
        assert_alike(&graphs::tree(&Tree { leaves: steps, children }), &tree);
    }
    let decoder = checked(Family::Seq2seq, 6, 2);
    let (source, target) = (decoder.chains[0].length.bound, decoder.chains[1].length.bound);
    assert_alike(&graphs::seq2seq(source, target, true), &decoder);
}

fn children_of(tree: &UnfoldedGrowth, leaves: u32) -> Vec<[u32; 2]> {
    let names: Vec<_> = tree.chains[1].stages[0]
        .inputs
        .iter()
        .filter_map(|input| match &input.source {
            Source::Nodes { of, output: 0, .. } => Some(of),
            _ => None,
        })
        .collect();
    let number = |node: Node| if node.chain == 0 { node.step } else { leaves + node.step };
    (0..leaves as usize - 1).map(|step| [number(names[0][step]), number(names[1][step])]).collect()
}
