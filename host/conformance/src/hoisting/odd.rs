//! Cells in which what can be computed ahead is not where one would look for it first.

use cellwright_cell_graph::Datatype;
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::sums::TERMS;

use super::super::cells::Draft;
use super::{TOKENS, random};

/// A state's product written first, a factor on a product and one on a bias, a constant added at the end.
pub(super) fn out_of_order() -> Draft {
    let weight = |name, shape: &[usize], seed| random(name, shape, &mut Rng::new(seed), 0.5);
    Draft::new("out of order")
        .known("x", Datatype::Fp32, &[9])
        .input("h", Datatype::Fp32, &[33])
        .known("y", Datatype::Fp32, &[16])
        .weight(weight("u", &[33, 33], 71))
        .weight(weight("w", &[33, 9], 72))
        .weight(weight("v", &[16, 33], 73))
        .weight(weight("b", &[33], 74))
        .weight(weight("one", &[1], 75))
        .operator("MatMul", &["h", "u"], &["hu"])
        .operator("Gemm", &["x", "w", "b"], &["xw"])
        .with("transB", 1)
        .with("alpha", 0.75)
        .with("beta", -1.5)
        .operator("MatMul", &["y", "v"], &["yv"])
        .operator("Add", &["hu", "xw"], &["part"])
        .operator("Add", &["yv", "part"], &["sum"])
        .operator("Add", &["sum", "one"], &["moved"])
        .operator("Tanh", &["moved"], &["next"])
        .output("next", Datatype::Fp32, &[33])
}

pub(super) fn two_tokens() -> Draft {
    let weight = |name, shape: &[usize], seed| random(name, shape, &mut Rng::new(seed), 0.5);
    Draft::new("two tokens")
        .known("first", Datatype::Int64, &[])
        .known("second", Datatype::Int32, &[1])
        .input("h", Datatype::Fp32, &[19])
        .weight(weight("e", &[TOKENS, 10], 81))
        .weight(weight("w", &[10, 19], 82))
        .weight(weight("v", &[10, 19], 83))
        .weight(weight("u", &[19, 19], 84))
        .operator("Gather", &["e", "second"], &["both"])
        .operator("Reshape", &["both"], &["b"])
        .with("shape", [0, 10].as_slice())
        .operator("Gather", &["e", "first"], &["a"])
        .operator("MatMul", &["h", "u"], &["hu"])
        .operator("MatMul", &["b", "v"], &["bv"])
        .operator("MatMul", &["a", "w"], &["aw"])
        .operator("Add", &["hu", "bv"], &["part"])
        .operator("Add", &["part", "aw"], &["sum"])
        .operator("Tanh", &["sum"], &["squashed"])
        .operator("Slice", &["a"], &["some"])
        .with("starts", [0].as_slice())
        .with("ends", [1].as_slice())
        .with("axes", [1].as_slice())
        .operator("Mul", &["squashed", "some"], &["next"])
        .output("next", Datatype::Fp32, &[19])
}

/// A carried token beside an input that is known: the latter goes first.
pub(super) fn token_beside_known() -> Draft {
    let weight = |name, shape: &[usize], seed| random(name, shape, &mut Rng::new(seed), 0.5);
    Draft::new("token beside known")
        .input("token", Datatype::Int64, &[])
        .known("x", Datatype::Fp32, &[8])
        .input("h", Datatype::Fp32, &[21])
        .weight(weight("e", &[TOKENS, 10], 91))
        .weight(weight("w", &[10, 21], 92))
        .weight(weight("v", &[8, 21], 93))
        .weight(weight("u", &[21, 21], 94))
        .operator("Gather", &["e", "token"], &["a"])
        .operator("MatMul", &["a", "w"], &["aw"])
        .operator("MatMul", &["h", "u"], &["hu"])
        .operator("MatMul", &["x", "v"], &["xv"])
        .operator("Add", &["aw", "hu"], &["part"])
        .operator("Add", &["part", "xv"], &["sum"])
        .operator("Sigmoid", &["sum"], &["next"])
        .output("next", Datatype::Fp32, &[21])
}

/// Rows of rank 2.
pub(super) fn matrices() -> Draft {
    let weight = |name, shape: &[usize], seed| random(name, shape, &mut Rng::new(seed), 0.5);
    Draft::new("matrices")
        .known("x", Datatype::Fp32, &[3, 8])
        .input("h", Datatype::Fp32, &[3, 34])
        .weight(weight("w", &[8, 34], 101))
        .weight(weight("u", &[34, 34], 102))
        .weight(weight("b", &[34], 103))
        .operator("MatMul", &["x", "w"], &["xw"])
        .operator("MatMul", &["h", "u"], &["hu"])
        .operator("Add", &["xw", "hu"], &["sum"])
        .operator("Add", &["b", "sum"], &["all"])
        .operator("Tanh", &["all"], &["next"])
        .output("next", Datatype::Fp32, &[3, 34])
}

/// An output that is known ahead, and read by the rest as well.
pub(super) fn wholly_known() -> Draft {
    let weight = |name, shape: &[usize], seed| random(name, shape, &mut Rng::new(seed), 0.5);
    Draft::new("wholly known")
        .known("x", Datatype::Fp32, &[8])
        .input("h", Datatype::Fp32, &[14])
        .weight(weight("w", &[8, 14], 111))
        .operator("MatMul", &["x", "w"], &["xw"])
        .operator("Relu", &["xw"], &["y"])
        .operator("Mul", &["y", "h"], &["yh"])
        .operator("Add", &["yh", "xw"], &["next"])
        .output("y", Datatype::Fp32, &[14])
        .output("next", Datatype::Fp32, &[14])
}

/// A product that is added to another, which is no sum: its row is added element by element, known or not.
pub(super) fn onto_a_known_product() -> Draft {
    let weight = |name, shape: &[usize], seed| random(name, shape, &mut Rng::new(seed), 0.5);
    Draft::new("onto a known product")
        .known("x", Datatype::Fp32, &[18])
        .input("h", Datatype::Fp32, &[35])
        .weight(weight("w", &[18, 35], 121))
        .weight(weight("u", &[35, 35], 122))
        .weight(weight("b", &[35], 123))
        .operator("Gemm", &["x", "w", "b"], &["xw"])
        .operator("Gemm", &["h", "u", "xw"], &["sum"])
        .operator("Tanh", &["sum"], &["next"])
        .output("next", Datatype::Fp32, &[35])
}

/// Gates of a token, something known and a state, side by side and multiplied at once, as cells that come from ONNX often have it.
pub(super) fn concatenated() -> Draft {
    let weight = |name, shape: &[usize], seed| random(name, shape, &mut Rng::new(seed), 0.5);
    Draft::new("concatenated")
        .known("token", Datatype::Int64, &[])
        .known("x", Datatype::Fp32, &[9])
        .input("h", Datatype::Fp32, &[21])
        .weight(weight("e", &[TOKENS, 10], 151))
        .weight(weight("w", &[42, 40], 152))
        .weight(weight("b", &[42], 153))
        .operator("Gather", &["e", "token"], &["embedded"])
        .operator("Concat", &["x", "h", "embedded"], &["all"])
        .with("axis", 1)
        .operator("Gemm", &["all", "w", "b"], &["gates"])
        .with("transB", 1)
        .operator("Split", &["gates"], &["f", "i"])
        .with("axis", 1)
        .with("num_outputs", 2)
        .operator("Sigmoid", &["f"], &["forgotten"])
        .operator("Tanh", &["i"], &["put in"])
        .operator("Mul", &["forgotten", "h"], &["kept"])
        .operator("Add", &["kept", "put in"], &["next"])
        .output("next", Datatype::Fp32, &[21])
}

/// The same of rows of rank 2, whose concatenation is read by others too.
pub(super) fn concatenated_matrices() -> Draft {
    let weight = |name, shape: &[usize], seed| random(name, shape, &mut Rng::new(seed), 0.5);
    Draft::new("concatenated matrices")
        .known("x", Datatype::Fp32, &[3, 8])
        .input("h", Datatype::Fp32, &[3, 34])
        .weight(weight("w", &[42, 34], 161))
        .operator("Concat", &["h", "x"], &["all"])
        .with("axis", 2)
        .operator("MatMul", &["all", "w"], &["sum"])
        .operator("ReduceMax", &["all"], &["top"])
        .with("axes", [2].as_slice())
        .operator("Mul", &["sum", "top"], &["scaled"])
        .operator("Tanh", &["scaled"], &["next"])
        .output("next", Datatype::Fp32, &[3, 34])
}

/// One product more than a sum has terms: the last is added element by element, however few of them are left to be computed.
pub(super) fn more_terms_than_a_product_has() -> Draft {
    let weight = |name: &str, shape: &[usize], seed| random(name, shape, &mut Rng::new(seed), 0.3);
    let mut draft = Draft::new("more terms than a product has").known("x", Datatype::Fp32, &[11]).input("h", Datatype::Fp32, &[34]);
    for term in 0..=TERMS {
        let (left, depth) = if term % 3 == 1 { ("x", 11) } else { ("h", 34) };
        let (w, product) = (format!("w{term}"), format!("p{term}"));
        draft = draft.weight(weight(&w, &[depth, 34], 131 + term as u64)).operator("MatMul", &[left, &w], &[&product]);
        if term > 0 {
            let before = if term == 1 { "p0".to_owned() } else { format!("s{}", term - 1) };
            draft = draft.operator("Add", &[&before, &product], &[&format!("s{term}")]);
        }
    }
    draft.operator("Tanh", &[&format!("s{TERMS}")], &["next"]).output("next", Datatype::Fp32, &[34])
}
