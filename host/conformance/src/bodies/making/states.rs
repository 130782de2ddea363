//! Steps of an LSTM, of a GRU and of a tree's node amid a body: what comes before them and after may be anything.

use cellwright_cell_graph::{Datatype, Tensor};

use super::{Made, Making};

/// Values of their states.
const UNITS: [usize; 5] = [1, 5, 8, 16, 33];

impl Making {
    /// A step over a value, with states of its own, of which its next ones are outputs.
    pub(super) fn recurrence(&mut self, x: &Made) {
        let ([k], units) = (&x.shape[..], self.one_of(&UNITS)) else { return };
        match self.rng.below(3) {
            0 => self.lstm((&x.name, *k), units),
            1 => self.gru((&x.name, *k), units),
            _ => self.node(units),
        }
    }

    /// An input, which at times others may pick.
    fn state(&mut self, units: usize) -> String {
        let name = self.name();
        let count = self.values.len();
        self.input(&name, Datatype::Fp32, &[units], true);
        if !self.rng.one_in(4) {
            self.values.truncate(count);
        }
        name
    }

    fn next_state(&mut self, name: String, units: usize) {
        self.outputs.push((name.clone(), Datatype::Fp32, vec![units]));
        self.keep(name, &[units]);
    }

    fn projected(&mut self, (of, k): (&str, usize), columns: usize) -> String {
        let weight = self.weight(&[columns, k], 1.0 / (k as f32).sqrt());
        let bias = self.weight(&[columns], 1.0);
        self.inner("Gemm", &[of, &weight, &bias], |draft| draft.with("transB", 1))
    }

    fn gates<const N: usize>(&mut self, of: &str) -> [String; N] {
        let names = [(); N].map(|()| self.name());
        let given: Vec<&str> = names.iter().map(String::as_str).collect();
        self.draw(|draft| draft.operator("Split", &[of], &given).with("axis", 1));
        names
    }

    fn lstm(&mut self, x: (&str, usize), units: usize) {
        let [h, c] = [units; 2].map(|units| self.state(units));
        let (of_x, of_h) = (self.projected(x, 4 * units), self.projected((&h, units), 4 * units));
        let sums = self.plain("Add", &[&of_x, &of_h]);
        let [i, f, g, o] = self.gates(&sums);
        let [i, f, o] = [i, f, o].map(|gate| self.plain("Sigmoid", &[&gate]));
        let g = self.plain("Tanh", &[&g]);
        let (kept, new) = (self.plain("Mul", &[&f, &c]), self.plain("Mul", &[&i, &g]));
        let c = self.plain("Add", &[&kept, &new]);
        self.state_out(&o, c, units);
    }

    /// h = o · tanh(c).
    fn state_out(&mut self, o: &str, c: String, units: usize) {
        let far = self.plain("Tanh", &[&c]);
        let h = self.plain("Mul", &[o, &far]);
        self.next_state(h, units);
        self.next_state(c, units);
    }

    fn gru(&mut self, x: (&str, usize), units: usize) {
        let h = self.state(units);
        let (of_x, of_h) = (self.projected(x, 3 * units), self.projected((&h, units), 3 * units));
        let ([r_x, z_x, n_x], [r_h, z_h, n_h]) = (self.gates(&of_x), self.gates(&of_h));
        let [r, z] = [(r_x, r_h), (z_x, z_h)].map(|(of_x, of_h)| {
            let sum = self.plain("Add", &[&of_x, &of_h]);
            self.plain("Sigmoid", &[&sum])
        });
        let beside = self.plain("Mul", &[&r, &n_h]);
        let sum = self.plain("Add", &[&n_x, &beside]);
        let n = self.plain("Tanh", &[&sum]);
        let next = if self.rng.one_in(2) {
            let far = self.plain("Sub", &[&n, &h]);
            let taken = self.plain("Mul", &[&z, &far]);
            self.plain("Add", &[&h, &taken])
        } else {
            let one = self.name();
            self.draw(|draft| draft.weight(Tensor::from_f32(&one, &[], &[1.0])));
            let rest = self.plain("Sub", &[&one, &z]);
            let (new, kept) = (self.plain("Mul", &[&rest, &n]), self.plain("Mul", &[&z, &h]));
            self.plain("Add", &[&new, &kept])
        };
        self.next_state(next, units);
    }

    fn node(&mut self, units: usize) {
        let [h_left, c_left, h_right, c_right] = [units; 4].map(|units| self.state(units));
        let both = self.inner("Concat", &[&h_left, &h_right], |draft| draft.with("axis", 1));
        let sums = self.projected((&both, 2 * units), 5 * units);
        let [i, left, right, o, u] = self.gates(&sums);
        let [i, left, right, o] = [i, left, right, o].map(|gate| self.plain("Sigmoid", &[&gate]));
        let u = self.plain("Tanh", &[&u]);
        let new = self.plain("Mul", &[&i, &u]);
        let (left, right) = (self.plain("Mul", &[&left, &c_left]), self.plain("Mul", &[&right, &c_right]));
        let part = self.plain("Add", &[&new, &left]);
        let c = self.plain("Add", &[&part, &right]);
        self.state_out(&o, c, units);
    }
}
