//! The binary TreeLSTM (Tai, Socher and Manning, 2015, section 3.2): a leaf cell, and an internal cell over two children.

use crate::abi::cellwright::plugin::types::Datatype::Fp32;
use crate::cell::{CellBuilder, Value};

impl CellBuilder {
    /// A leaf: `nn.Linear` `[3H, E]` of x, gates i, o, u; c = σ(i) · tanh(u), h = σ(o) · tanh(c). Outputs `h` and `c`, in this order.
    pub fn tree_leaf(&mut self, x: Value, hidden: u32, prefix: &str) {
        let gates = self.linear(x, prefix);
        let [i, o, u] = self.split(gates, [hidden; 3]);
        let (i, u) = (self.sigmoid(i), self.tanh(u));
        let c = self.mul(i, u);
        self.tree_outputs(o, c, hidden);
    }

    /// An internal node: inputs `h_left`, `c_left`, `h_right`, `c_right`; `nn.Linear` `[5H, 2H]` of `[h_left, h_right]`, gates i, f_left, f_right,
    /// o, u; c = σ(i) · tanh(u) + σ(f_left) · c_left + σ(f_right) · c_right, h = σ(o) · tanh(c). Outputs `h` and `c`, in this order.
    pub fn tree_node(&mut self, hidden: u32, prefix: &str) {
        let [h_left, c_left, h_right, c_right] = ["h_left", "c_left", "h_right", "c_right"].map(|name| self.input(name, Fp32, &[hidden]));
        let children = self.concat(&[h_left, h_right]);
        let gates = self.linear(children, prefix);
        let [i, f_left, f_right, o, u] = self.split(gates, [hidden; 5]);
        let (i, f_left, f_right, u) = (self.sigmoid(i), self.sigmoid(f_left), self.sigmoid(f_right), self.tanh(u));
        let (new, left, right) = (self.mul(i, u), self.mul(f_left, c_left), self.mul(f_right, c_right));
        let kept = self.add(left, right);
        let c = self.add(new, kept);
        self.tree_outputs(o, c, hidden);
    }

    fn tree_outputs(&mut self, o: Value, c: Value, hidden: u32) {
        let (o, squashed) = (self.sigmoid(o), self.tanh(c));
        let h = self.mul(o, squashed);
        self.output("h", h, Fp32, &[hidden]);
        self.output("c", c, Fp32, &[hidden]);
    }
}
