//! A tree's graph: its leaves, its internal nodes, and the head on the last of them.

use cellwright_guest::prelude::*;

use crate::model::Tree;
use crate::options::Mode;
use crate::shape::{Child, Shape};
use crate::{arrays, expression};

pub(crate) fn unfold(model: &Tree, request: &Request) -> Result<Growth, Refusal> {
    let shape = match &model.options.mode {
        Mode::Text { input, brackets, vocabulary } => {
            let input = request.input(input)?;
            let parsed = expression::parse(&input.text()?, *brackets, vocabulary, model.options.max_leaves);
            parsed.map_err(|sentence| input.refusal(format!("is no expression: {sentence}")))?
        }
        Mode::Arrays => from_arrays(model, request)?,
    };
    Ok(graph(model, shape))
}

fn from_arrays(model: &Tree, request: &Request) -> Result<Shape, Refusal> {
    let (tokens, children) = (request.input("tokens")?, request.input("children")?);
    let leaves = tokens.sequence(Datatype::Int64, &[], model.options.max_leaves)?.count;
    let shape = [i64::from(leaves) - 1, 2];
    if children.spec.datatype != Datatype::Int64 || children.spec.shape != shape {
        return Err(children.wrong(Datatype::Int64, &shape));
    }
    arrays::tree(tokens.ints()?, &children.ints()?).map_err(|sentence| children.refusal(sentence))
}

fn graph(model: &Tree, shape: Shape) -> Growth {
    let count = |length: usize| u32::try_from(length).expect("leaves are bounded far below 2³²");
    let mut growth = GrowthBuilder::new();
    let leaves = growth.chain(count(shape.tokens.len())).stage(&model.leaf).input("token", Source::Ints(shape.tokens)).add();
    let root = if shape.children.is_empty() {
        leaves
    } else {
        let internal = leaves.number + 1;
        let node = |child| match child {
            Child::Leaf(step) => Node { chain: leaves.number, step },
            Child::Internal(step) => Node { chain: internal, step },
        };
        let left: Vec<Node> = shape.children.iter().map(|(left, _)| node(*left)).collect();
        let right: Vec<Node> = shape.children.iter().map(|(_, right)| node(*right)).collect();
        let nodes = growth.chain(count(shape.children.len())).stage(&model.node);
        let nodes = nodes.nodes("h_left", "h", left.clone()).nodes("c_left", "c", left);
        nodes.nodes("h_right", "h", right.clone()).nodes("c_right", "c", right).add()
    };
    let head = growth.chain(1).stage(&model.head).input("h", root.output("h").last()).add();
    growth.output_last("logits", head.output("logits")).output_last("label", head.output("label"));
    growth.finish()
}
