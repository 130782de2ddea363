//! A body made of one random operator after the other, each over values that are there.

mod states;

use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::{Datatype, Tensor};

use super::super::cells::Draft;

/// Rows of the table.
pub(super) const TABLE_ROWS: usize = 11;

/// Of inputs of a cell by itself.
pub(super) const SHAPES: [&[usize]; 11] = [&[1], &[7], &[33], &[300], &[2, 5], &[3, 1], &[256], &[130], &[16], &[24], &[]];

const COLUMNS: [usize; 11] = [1, 2, 3, 16, 33, 64, 130, 257, 300, 700, 2100];

/// A value of floats.
#[derive(Clone, Debug)]
struct Made {
    name: String,
    shape: Vec<usize>,
    is_input: bool,
}

impl Made {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A body that is being made.
pub(super) struct Making {
    pub(super) rng: Rng,
    draft: Draft,
    values: Vec<Made>,
    truths: Vec<(String, Vec<usize>)>,
    names: usize,
    elements_most: usize,
    outputs: Vec<(String, Datatype, Vec<usize>)>,
}

impl Making {
    pub(super) fn new(rng: Rng, elements_most: usize) -> Self {
        let (values, truths, outputs) = (Vec::new(), Vec::new(), Vec::new());
        Self { rng, draft: Draft::new("body"), values, truths, names: 0, elements_most, outputs }
    }

    fn draw(&mut self, draft: impl FnOnce(Draft) -> Draft) {
        self.draft = draft(std::mem::replace(&mut self.draft, Draft::new("")));
    }

    fn one_of<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.rng.below(of.len() as u64) as usize].clone()
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("v{}", self.names)
    }

    fn input(&mut self, name: &str, datatype: Datatype, shape: &[usize], is_carried: bool) {
        self.draw(|draft| if is_carried { draft.input(name, datatype, shape) } else { draft.known(name, datatype, shape) });
        if datatype == Datatype::Fp32 {
            self.values.push(Made { name: name.to_owned(), shape: shape.to_vec(), is_input: true });
        }
    }

    fn weight(&mut self, shape: &[usize], scale: f32) -> String {
        let name = self.name().replace('v', "w");
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| self.rng.float() * scale).collect();
        self.draw(|draft| draft.weight(Tensor::from_f32(&name, shape, &values)));
        name
    }

    /// What an operator of one result gives, which nobody picks yet.
    fn inner(&mut self, kind: &str, inputs: &[&str], with: impl FnOnce(Draft) -> Draft) -> String {
        let name = self.name();
        self.draw(|draft| with(draft.operator(kind, inputs, &[&name])));
        name
    }

    fn plain(&mut self, kind: &str, inputs: &[&str]) -> String {
        self.inner(kind, inputs, |draft| draft)
    }

    fn keep(&mut self, name: String, shape: &[usize]) {
        self.values.push(Made { name, shape: shape.to_vec(), is_input: false });
    }

    fn add(&mut self, kind: &str, inputs: &[&str], shape: &[usize], with: impl FnOnce(Draft) -> Draft) {
        let name = self.inner(kind, inputs, with);
        self.keep(name, shape);
    }

    /// A value, one of the last more often than others.
    fn pick(&mut self) -> Made {
        let count = self.values.len() as u64;
        let back = if self.rng.one_in(2) { self.rng.below(count.min(5)) } else { self.rng.below(count) };
        self.values[(count - 1 - back) as usize].clone()
    }

    /// One of those that fit.
    fn pick_of(&mut self, fits: impl Fn(&Made) -> bool) -> Option<Made> {
        let of: Vec<Made> = self.values.iter().filter(|made| fits(made)).cloned().collect();
        (!of.is_empty()).then(|| self.one_of(&of))
    }

    /// The inputs: vectors and matrices of these shapes, at times states of a recurrence, at times a number that is looked up.
    pub(super) fn begin(&mut self, shapes: &[&[usize]]) {
        let carried = self.rng.below(3);
        for at in 0..self.rng.between(1, 4) {
            let (shape, is_carried) = (self.one_of(shapes), carried == 0 || (carried == 1 && self.rng.one_in(2)));
            self.input(&format!("in{at}"), Datatype::Fp32, shape, is_carried);
        }
        if self.rng.one_in(2) {
            let (is_carried, width) = (self.rng.one_in(2), self.one_of(&[1, 5, 64, 300]));
            self.input("token", Datatype::Int64, &[], is_carried);
            let table = self.weight(&[TABLE_ROWS, width], 1.0);
            self.add("Gather", &[&table, "token"], &[width], |draft| draft);
        }
    }

    /// One operator more, or a few; none if what was drawn does not fit.
    pub(super) fn step(&mut self) {
        let made = self.pick();
        match self.rng.below(17) {
            0 => {
                let kind = self.one_of(&["Tanh", "Sigmoid", "Relu", "Gelu", "Silu", "Neg", "Identity"]);
                self.add(kind, &[&made.name], &made.shape, |draft| draft);
            }
            1 | 2 => self.of_two(&made),
            3 => self.with_constant(&made),
            4 | 5 => self.concat(&made),
            6 => self.split(&made),
            7 => self.slice(&made),
            8 => self.reshape(&made),
            9 => self.along(&made),
            10..=12 => self.sum(&made),
            13 => self.gemm(&made),
            14 => self.choice(&made),
            // Once at most, mostly: of several the first one is found.
            15 if self.outputs.is_empty() => self.recurrence(&made),
            _ => self.normalization(&made),
        }
    }

    fn of_two(&mut self, made: &Made) {
        let fits = |one: &usize, other: &usize| one == other || *one == 1 || *other == 1;
        let other = self.pick_of(|other| {
            other.shape.len() == made.shape.len() && other.shape.iter().zip(&made.shape).all(|(one, other)| fits(one, other))
        });
        let Some(other) = other else { return };
        let shape: Vec<usize> = made.shape.iter().zip(&other.shape).map(|(one, other)| *one.max(other)).collect();
        if shape.iter().product::<usize>() > self.elements_most {
            return;
        }
        let kind = self.one_of(&["Add", "Sub", "Mul", "Mul"]);
        self.add(kind, &[&made.name, &other.name], &shape, |draft| draft);
        if self.rng.one_in(2) {
            let whole = self.values[self.values.len() - 1].name.clone();
            self.add("Tanh", &[&whole], &shape, |draft| draft);
        }
    }

    fn with_constant(&mut self, made: &Made) {
        let shape: Vec<usize> = made.shape.iter().map(|extent| if self.rng.one_in(2) { *extent } else { 1 }).collect();
        let weight = self.weight(&shape, 1.0);
        let kind = self.one_of(&["Add", "Mul"]);
        let operands = if self.rng.one_in(2) { [made.name.as_str(), &weight] } else { [weight.as_str(), &made.name] };
        self.add(kind, &operands, &made.shape, |draft| draft);
    }

    fn axis(&mut self, made: &Made) -> Option<usize> {
        (!made.shape.is_empty()).then(|| self.rng.below(made.shape.len() as u64) as usize)
    }

    fn concat(&mut self, made: &Made) {
        let Some(axis) = self.axis(made) else { return };
        let fits = |other: &Made| {
            let are_equal = other.shape.iter().zip(&made.shape).enumerate().all(|(at, (one, other))| at == axis || one == other);
            other.shape.len() == made.shape.len() && are_equal
        };
        let more: Vec<Made> = (0..self.rng.between(1, 3)).filter_map(|_| self.pick_of(fits)).collect();
        let parts: Vec<&Made> = [made].into_iter().chain(&more).collect();
        let mut names: Vec<String> = parts.iter().map(|part| part.name.clone()).collect();
        let mut shape = made.shape.clone();
        shape[axis] = parts.iter().map(|part| part.shape[axis]).sum();
        if self.rng.one_in(4) {
            let mut of_weight = made.shape.clone();
            of_weight[axis] = 2;
            shape[axis] += 2;
            let weight = self.weight(&of_weight, 1.0);
            names.insert(self.rng.below(names.len() as u64 + 1) as usize, weight);
        }
        if shape.iter().product::<usize>() <= self.elements_most {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            self.add("Concat", &names, &shape, |draft| draft.with("axis", axis as i64 + 1));
        }
    }

    fn split(&mut self, made: &Made) {
        let Some(axis) = self.axis(made).filter(|axis| made.shape[*axis] > 1) else { return };
        let (mut left, mut sizes) = (made.shape[axis], Vec::new());
        while left > 0 {
            let size = if sizes.len() == 3 { left } else { 1 + self.rng.below(left as u64) as usize };
            sizes.push(size as i64);
            left -= size;
        }
        let names: Vec<String> = sizes.iter().map(|_| self.name()).collect();
        let given: Vec<&str> = names.iter().map(String::as_str).collect();
        self.draw(|draft| draft.operator("Split", &[&made.name], &given).with("axis", axis as i64 + 1).with("split", sizes.as_slice()));
        for (name, size) in names.into_iter().zip(sizes) {
            let mut shape = made.shape.clone();
            shape[axis] = size as usize;
            self.keep(name, &shape);
        }
    }

    fn slice(&mut self, made: &Made) {
        let Some(axis) = self.axis(made) else { return };
        let extent = made.shape[axis] as i64;
        let first = self.rng.below(extent as u64) as i64;
        let before_all = i64::from(i32::MIN);
        let (start, end, step) = self.one_of(&[
            (0, extent, 2),
            (extent - 1, before_all, -1),
            (first, extent, 1),
            (extent - 1, before_all, -2),
            (first, before_all, -1),
        ]);
        let count = if step > 0 { (end - start + step - 1) / step } else { (start + 1 - step - 1) / -step };
        let mut shape = made.shape.clone();
        shape[axis] = count as usize;
        self.add("Slice", &[&made.name], &shape, |draft| {
            let draft = draft.with("starts", [start].as_slice()).with("ends", [end].as_slice());
            draft.with("axes", [axis as i64 + 1].as_slice()).with("steps", [step].as_slice())
        });
    }

    fn reshape(&mut self, made: &Made) {
        let (elements, rows) = (made.elements(), self.one_of(&[2, 3, 5]));
        let shape = if elements % rows == 0 && self.rng.one_in(2) { vec![rows, elements / rows] } else { vec![elements] };
        let to: Vec<i64> = [0].into_iter().chain(shape.iter().map(|extent| *extent as i64)).collect();
        self.add("Reshape", &[&made.name], &shape, |draft| draft.with("shape", to.as_slice()));
    }

    fn along(&mut self, made: &Made) {
        let Some(axis) = self.axis(made) else { return };
        let kind = self.one_of(&["Softmax", "LogSoftmax", "ReduceSum", "ReduceMean", "ReduceMax"]);
        if kind.ends_with("Softmax") {
            return self.add(kind, &[&made.name], &made.shape, |draft| draft.with("axis", axis as i64 + 1));
        }
        let mut shape = made.shape.clone();
        shape[axis] = 1;
        self.add(kind, &[&made.name], &shape, |draft| draft.with("axes", [axis as i64 + 1].as_slice()));
    }

    fn product(&mut self, made: &Made, columns: usize) -> String {
        let k = made.shape[made.shape.len() - 1];
        let weight = self.weight(&[k, columns], 1.0 / (k as f32).sqrt());
        self.plain("MatMul", &[&made.name, &weight])
    }

    /// A product, or a sum of products and biases, of which the first is at times also a value by itself.
    fn sum(&mut self, made: &Made) {
        let Some((k, leading)) = made.shape.split_last() else { return };
        let (columns, rows) = (self.one_of(&COLUMNS), made.elements() / k);
        if rows * columns > self.elements_most {
            return;
        }
        let shape = [leading, &[columns]].concat();
        let mut last = self.product(made, columns);
        if self.rng.one_in(2) {
            self.keep(last.clone(), &shape);
        }
        for _ in 0..self.rng.below(3) {
            let summand = if self.rng.one_in(3) {
                self.weight(&[columns], 1.0)
            } else {
                let fits = |other: &Made| other.shape.split_last().is_some_and(|(_, of)| of == leading);
                let Some(other) = self.pick_of(fits) else { return };
                self.product(&other, columns)
            };
            last = self.plain("Add", &[&last, &summand]);
        }
        self.keep(last, &shape);
    }

    fn gemm(&mut self, made: &Made) {
        let [k] = made.shape[..] else { return };
        let Some(c) = self.pick_of(|other| other.shape.len() == 1) else { return };
        let weight = self.weight(&[c.shape[0], k], 1.0 / (k as f32).sqrt());
        let beta = self.one_of(&[0.5, 1.0]);
        self.add("Gemm", &[&made.name, &weight, &c.name], &c.shape, |draft| draft.with("transB", 1).with("beta", beta));
    }

    /// By what inputs alone say: elsewhere a choice may differ by how sums are rounded.
    fn choice(&mut self, made: &Made) {
        if let Some((truths, _)) = self.truths.iter().find(|(_, shape)| *shape == made.shape).cloned() {
            let Some(other) = self.pick_of(|other| other.shape == made.shape) else { return };
            self.add("Where", &[&truths, &made.name, &other.name], &made.shape, |draft| draft);
        } else if made.is_input {
            let weight = self.weight(&made.shape, 1.0);
            let truths = self.plain("Greater", &[&made.name, &weight]);
            self.truths.push((truths, made.shape.clone()));
        }
    }

    fn normalization(&mut self, made: &Made) {
        let Some(width) = made.shape.last().copied() else { return };
        let [scale, bias] = [1.0; 2].map(|most| self.weight(&[width], most));
        self.add("LayerNormalization", &[&made.name, &scale, &bias], &made.shape, |draft| draft.with("epsilon", 0.1));
    }

    /// One of its outputs: so many elements, between -1 and 1, of some vector.
    pub(super) fn vector_out(&mut self, elements: usize) {
        if let Some(made) = self.pick_of(|made| made.shape.len() == 1) {
            let sums = self.product(&made, elements);
            let name = self.plain("Tanh", &[&sums]);
            self.outputs.push((name, Datatype::Fp32, vec![elements]));
        }
    }

    /// Its outputs: any values, and at times the best of one, or of a product that is read by nobody else.
    pub(super) fn end(mut self) -> (Draft, Rng) {
        for _ in 0..self.rng.between(1, 4) {
            let made = self.pick();
            if self.outputs.iter().all(|(name, ..)| *name != made.name) {
                self.outputs.push((made.name, Datatype::Fp32, made.shape));
            }
        }
        if self.rng.one_in(2)
            && let Some(made) = self.pick_of(|made| made.shape.len() == 1)
        {
            self.best(&made);
        }
        let Self { draft, rng, outputs, .. } = self;
        (outputs.iter().fold(draft, |draft, (name, datatype, shape)| draft.output(name, *datatype, shape)), rng)
    }

    fn best(&mut self, made: &Made) {
        let (of, width) = if self.rng.one_in(2) {
            let columns = self.one_of(&COLUMNS).min(self.elements_most);
            (self.product(made, columns), columns)
        } else {
            (made.name.clone(), made.shape[0])
        };
        if self.rng.one_in(2) {
            let at = self.inner("ArgMax", &[&of], |draft| draft.with("axis", 1));
            return self.outputs.push((at, Datatype::Int64, vec![1]));
        }
        let most = self.one_of(&[8, 70]);
        let (k, largest) = (1 + self.rng.below(width.min(most) as u64) as usize, i64::from(self.rng.one_in(2)));
        let [values, at] = [self.name(), self.name()];
        self.draw(|draft| {
            let draft = draft.operator("TopK", &[&of], &[&values, &at]).with("axis", 1);
            draft.with("k", k as i64).with("largest", largest)
        });
        self.outputs.push((values, Datatype::Fp32, vec![k]));
        if self.rng.one_in(2) {
            self.outputs.push((at, Datatype::Int64, vec![k]));
        }
    }
}
