//! Growths that no model has: any cells, any sources that fit, several stages. Mostly valid; and the same with things broken.

use std::sync::Arc;

use super::families::{output, tensors};
use crate::cell::Port;
use crate::check::Model;
use crate::datatype::Datatype;
use crate::generate::{CELLS, Rng};
use crate::graph::{
    Affine, Chain, Continuation, Extent, Feedback, Gathered, Growth, Node, OutputRef, Pace, ResponseTensor, Source, Span, SpanOf, Stage,
};
use crate::tensor::Tensor;

/// Rows of a wild growth's tensors.
const ROWS: u32 = 6;

/// A random growth, and its request's tensors. It may be invalid here and there (a stop on a chain that is like another, say), but mostly is
/// not.
#[must_use]
pub fn wild(model: &Model, rng: &mut Rng) -> (Growth, Vec<Arc<Tensor>>) {
    let tensors = tensors(model, ROWS, rng);
    let mut making = Making { model, rng, chains: Vec::new(), bounds: Vec::new(), forgotten: Vec::new() };
    let mut growth = making.growth();
    let Making { bounds, .. } = making;
    if rng.one_in(3) {
        let of = |rng: &mut Rng| output(rng.below(bounds.len() as u64) as u32, 0, 0);
        let (watch, keep) = (vec![of(rng)], vec![of(rng), of(rng)]);
        let pace = if rng.one_in(2) { Pace::All } else { Pace::Every(rng.between(1, 3)) };
        growth.next = Some(Continuation { watch, pace, keep, keep_tensors_from: rng.between(0, 2), state: vec![1, 2, 3] });
    }
    (growth, tensors)
}

/// Two such growths of one request. The second may refer to all of the first.
#[must_use]
pub fn wild_pair(model: &Model, rng: &mut Rng) -> ([Growth; 2], Vec<Arc<Tensor>>) {
    let tensors = tensors(model, ROWS, rng);
    let mut making = Making { model, rng, chains: Vec::new(), bounds: Vec::new(), forgotten: Vec::new() };
    let mut first = making.growth();
    let keep = making.readable();
    first.next = Some(Continuation { watch: vec![], pace: Pace::All, keep, keep_tensors_from: 0, state: vec![] });
    let second = making.growth();
    ([first, second], tensors)
}

/// So many such growths of one request (at least 1), each of which refers to any chains that the one before keeps, cancels others, and watches some outputs.
#[must_use]
pub fn wild_growths(model: &Model, count: u32, rng: &mut Rng) -> (Vec<Growth>, Vec<Arc<Tensor>>) {
    let tensors = tensors(model, ROWS, rng);
    let mut making = Making { model, rng, chains: Vec::new(), bounds: Vec::new(), forgotten: Vec::new() };
    let mut growths: Vec<Growth> = Vec::new();
    for number in 0..count.max(1) {
        let cancel = if number == 0 || !making.rng.one_in(3) { vec![] } else { vec![making.rng.below(making.chains.len() as u64) as u32] };
        making.forgotten.extend(&cancel);
        let mut growth = making.growth();
        growth.cancel = cancel;
        if number + 1 < count {
            let chains = making.chains.len() as u32;
            let forgets = making.rng.one_in(2);
            let forgotten: Vec<u32> = (0..chains).filter(|_| forgets && making.rng.one_in(3)).collect();
            making.forgotten.extend(forgotten);
            let keep = making.readable();
            let watch = keep.iter().copied().filter(|_| making.rng.one_in(8)).collect();
            let pace = if making.rng.one_in(2) { Pace::All } else { Pace::Every(making.rng.between(1, 3)) };
            growth.next = Some(Continuation { watch, pace, keep, keep_tensors_from: 0, state: vec![] });
        }
        growths.push(growth);
    }
    (growths, tensors)
}

struct Making<'a> {
    model: &'a Model,
    rng: &'a mut Rng,
    chains: Vec<Chain>,
    bounds: Vec<u32>,
    /// Chains that nobody may refer to any more.
    forgotten: Vec<u32>,
}

impl Making<'_> {
    /// The next growth, and perhaps an answer of its last chain.
    fn growth(&mut self) -> Growth {
        let first = self.chains.len();
        for _ in 0..self.rng.between(1, 5) {
            self.chain();
        }
        let mut growth = Growth { chains: self.chains[first..].to_vec(), ..Growth::default() };
        if self.rng.one_in(2) {
            let (all, from) = (self.rng.one_in(2), output(self.chains.len() as u32 - 1, 0, 0));
            let name = if all { "all" } else { "last" }.to_owned();
            let from = if all { Gathered::All(from) } else { Gathered::Last(from) };
            growth.outputs.push(ResponseTensor { name, from, stream: self.rng.one_in(3) });
        }
        growth
    }

    fn chain(&mut self) {
        let number = self.chains.len() as u32;
        let like = if number > 0 && self.rng.one_in(4) { Some(self.rng.below(u64::from(number)) as u32) } else { None };
        let like = like.filter(|chain| !self.forgotten.contains(chain));
        let bound = like.map_or_else(|| self.rng.between(1, 6), |like| self.bounds[like as usize]);
        let count = if self.rng.one_in(2) { 1 } else { self.rng.between(2, 4) };
        let cells: Vec<u32> = (0..count).map(|_| self.rng.below(self.model.cells.len() as u64) as u32).collect();
        let feedback = self.feedback(&cells);
        let mut stages = Vec::new();
        for (stage, cell) in cells.iter().enumerate() {
            let ports = self.model.cells[*cell as usize].inputs.clone();
            let inputs = ports.iter().enumerate().map(|(input, port)| {
                let fed = feedback.iter().any(|feedback| (feedback.to_stage, feedback.input) == (stage as u32, input as u32));
                let steps = if fed { 1 } else { bound };
                self.source(&Reader { chain: number, stage, cells: &cells, port, steps })
            });
            let inputs = inputs.collect();
            stages.push(Stage { cell: *cell, inputs });
        }
        let stop =
            if like.is_none() && self.rng.one_in(2) { self.producers(&cells, |port| port.datatype == Datatype::Bool).pop() } else { None };
        let length = like.map_or(Extent::Fixed(bound), Extent::Like);
        self.chains.push(Chain { stages, length, feedback, stop, series: None });
        self.bounds.push(bound);
    }

    /// All outputs of all chains that may be referred to.
    fn readable(&self) -> Vec<OutputRef> {
        let chains = (0..).zip(&self.chains).filter(|(chain, _)| !self.forgotten.contains(chain));
        let outputs = chains.flat_map(|(chain, of)| {
            let outputs = self.producers(&of.stages.iter().map(|stage| stage.cell).collect::<Vec<_>>(), |_| true);
            outputs.into_iter().map(move |(stage, number)| output(chain, stage, number))
        });
        outputs.collect()
    }

    /// Outputs `(stage, output)` of those cells that fit.
    fn producers(&self, cells: &[u32], fits: impl Fn(&Port) -> bool) -> Vec<(u32, u32)> {
        let outputs = cells.iter().enumerate().flat_map(|(stage, cell)| {
            let outputs = &self.model.cells[*cell as usize].outputs;
            outputs.iter().enumerate().map(move |(output, of)| ((stage as u32, output as u32), &of.port))
        });
        outputs.filter(|(_, port)| fits(port)).map(|(at, _)| at).collect()
    }

    fn feedback(&mut self, cells: &[u32]) -> Vec<Feedback> {
        let mut feedback = Vec::new();
        for (to_stage, cell) in cells.iter().enumerate() {
            let ports = self.model.cells[*cell as usize].inputs.clone();
            for (input, port) in ports.iter().enumerate().filter(|(_, port)| port.carried) {
                let from = self.producers(cells, |output| same(port, output));
                if let (Some((stage, output)), false) = (self.choose(&from), self.rng.one_in(4)) {
                    let (to_stage, input) = (to_stage as u32, input as u32);
                    feedback.push(Feedback { stage, output, to_stage, input });
                }
            }
        }
        feedback
    }

    fn choose<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.rng.below(from.len() as u64) as usize).copied()
    }

    fn source(&mut self, reader: &Reader<'_>) -> Source {
        if reader.port.ragged {
            return self.spans(reader);
        }
        if let [rows, _] = reader.port.shape[..] {
            return self.window(reader, rows);
        }
        let siblings = self.producers(&reader.cells[..reader.stage], |output| same(reader.port, output));
        match self.rng.below(7) {
            0 => self.outside(reader),
            1 | 2 if !siblings.is_empty() => {
                let (stage, output) = self.choose(&siblings).unwrap_or_default();
                Source::Sibling { stage, output }
            }
            3 => self.nodes(reader).unwrap_or(Source::Zeros),
            _ => self.other_chain(reader).unwrap_or_else(|| self.outside(reader)),
        }
    }

    /// So many rows of one origin, or of two one behind the other. Some begin before the first, and end behind the last.
    fn window(&mut self, reader: &Reader<'_>, rows: u32) -> Source {
        let port = Port { shape: reader.port.shape[1..].to_vec(), ..reader.port.clone() };
        let is_x = self.model.cells[CELLS.lstm as usize].inputs[0].shape == port.shape;
        if is_x && self.rng.one_in(4) {
            return Source::Frames { tensor: 0, at: self.line(ROWS * port.shape[0]) };
        }
        let first = self.rng.between(1, rows);
        let counts = [first, rows - first];
        let mut spans = Vec::new();
        for count in counts.into_iter().filter(|count| *count > 0) {
            let own = self.producers(reader.cells, |output| same(&port, output));
            if let (Some((stage, number)), true) = (self.choose(&own), self.rng.one_in(4)) {
                let (every, behind) = (self.rng.between(1, 2), i64::from(self.rng.between(0, 2)));
                let behind = behind + i64::from(stage as usize >= reader.stage);
                let at = Affine { first: -behind - i64::from(every * (count - 1)), stride: self.rng.between(0, 1) as i32, from_end: false };
                spans.push(Span { of: SpanOf::Chain(output(reader.chain, stage, number)), at, every, count: Some(count) });
                continue;
            }
            let chain = self.rng.below(self.chains.len() as u64) as u32;
            let readable = self.chains.get(chain as usize).filter(|_| !self.forgotten.contains(&chain));
            let cells: Vec<u32> = readable.iter().flat_map(|chain| &chain.stages).map(|stage| stage.cell).collect();
            let fitting = self.producers(&cells, |output| same(&port, output));
            let (of, places) = match self.choose(&fitting) {
                Some((stage, number)) => (SpanOf::Chain(output(chain, stage, number)), self.bounds[chain as usize]),
                None if is_x => (SpanOf::Tensor(0), ROWS),
                None => return Source::Zeros,
            };
            spans.push(Span { of, at: self.line(places), every: self.rng.between(1, 2), count: Some(count) });
        }
        Source::Many(spans)
    }

    /// Any number of rows: all, as far as this step, or the last few.
    fn spans(&mut self, reader: &Reader<'_>) -> Source {
        let port = Port { ragged: false, ..reader.port.clone() };
        let mut spans = Vec::new();
        for _ in 0..self.rng.between(0, 2) {
            let own = self.producers(reader.cells, |output| same(&port, output));
            let chain = self.rng.below(self.chains.len() as u64) as u32;
            let readable = self.chains.get(chain as usize).filter(|_| !self.forgotten.contains(&chain));
            let cells: Vec<u32> = readable.iter().flat_map(|chain| &chain.stages).map(|stage| stage.cell).collect();
            let fitting = self.producers(&cells, |output| same(&port, output));
            let is_x = self.model.cells[CELLS.lstm as usize].inputs[0].shape == port.shape;
            let every = self.rng.between(1, 2);
            let count = if self.rng.one_in(2) { u32::MAX >> 1 } else { self.rng.between(1, 5) };
            let before = |step: i64| step - i64::from(every) * i64::from(count - 1);
            if let (Some((stage, number)), true) = (self.choose(&own), self.rng.one_in(3)) {
                let behind = i64::from(self.rng.between(0, 1)) + i64::from(stage as usize >= reader.stage);
                let at = Affine { first: before(-behind), stride: 1, from_end: false };
                spans.push(Span { of: SpanOf::Chain(output(reader.chain, stage, number)), at, every, count: Some(count) });
                continue;
            }
            let (of, places) = match self.choose(&fitting) {
                Some((stage, number)) => (SpanOf::Chain(output(chain, stage, number)), self.bounds[chain as usize]),
                None if is_x => (SpanOf::Tensor(0), ROWS),
                None => continue,
            };
            let (at, count) = match self.rng.below(3) {
                0 => (self.line(places), None),
                1 => (Affine { first: before(self.rng.between(0, 1).into()), stride: 1, from_end: false }, Some(count)),
                _ => (self.line(places), Some(self.rng.between(1, 4))),
            };
            spans.push(Span { of, at, every, count });
        }
        Source::Many(spans)
    }

    /// A line that begins near so many places.
    fn line(&mut self, places: u32) -> Affine {
        let stride = [1, 1, 0, 2, -1][self.rng.below(5) as usize];
        Affine { first: i64::from(self.rng.below(u64::from(places) + 4) as u32) - 3, stride, from_end: self.rng.one_in(4) }
    }

    /// From the request or the plugin.
    fn outside(&mut self, reader: &Reader<'_>) -> Source {
        let number = reader.port.datatype == Datatype::Int64;
        let width = self.model.cells[CELLS.lstm as usize].inputs[0].shape.clone();
        match self.rng.below(4) {
            0 if number => Source::Rows { tensor: 1, at: self.affine(reader.steps, ROWS) },
            1 if number => Source::Ints((0..reader.steps).map(|_| self.rng.below(3).cast_signed()).collect()),
            2 if number => Source::Index(Affine::EVERY),
            0 | 1 if reader.port.shape == width && !number => Source::Rows { tensor: 0, at: self.affine(reader.steps, ROWS) },
            _ => Source::Zeros,
        }
    }

    fn other_chain(&mut self, reader: &Reader<'_>) -> Option<Source> {
        let chain = self.rng.below(self.chains.len() as u64) as u32;
        if self.forgotten.contains(&chain) {
            return None;
        }
        let cells: Vec<u32> = self.chains.get(chain as usize)?.stages.iter().map(|stage| stage.cell).collect();
        let fitting = self.producers(&cells, |output| same(reader.port, output));
        let (stage, number) = self.choose(&fitting)?;
        let of = output(chain, stage, number);
        let source = if self.rng.one_in(2) {
            Source::Last(of)
        } else {
            Source::Steps { of, at: self.affine(reader.steps, self.bounds[chain as usize]) }
        };
        Some(source)
    }

    /// A name for every step: of an earlier chain, or of an earlier step of this one.
    fn nodes(&mut self, reader: &Reader<'_>) -> Option<Source> {
        let own = self.producers(reader.cells, |output| same(reader.port, output));
        let (stage, output) = self.choose(&own)?;
        let fits = |chain: &Chain| {
            let port = chain.stages.get(stage as usize).map(|stage| &self.model.cells[stage.cell as usize].outputs);
            port.and_then(|outputs| outputs.get(output as usize)).is_some_and(|found| same(reader.port, &found.port))
        };
        let others: Vec<u32> =
            (0..reader.chain).filter(|chain| fits(&self.chains[*chain as usize]) && !self.forgotten.contains(chain)).collect();
        let mut of = Vec::new();
        for step in 0..reader.steps {
            let other = self.choose(&others);
            of.push(match other {
                Some(chain) if step == 0 || self.rng.one_in(3) => {
                    Node { chain, step: self.rng.below(u64::from(self.bounds[chain as usize])) as u32 }
                }
                _ if step > 0 => Node { chain: reader.chain, step: self.rng.below(u64::from(step)) as u32 },
                _ => return None,
            });
        }
        Some(Source::Nodes { stage, output, of })
    }

    /// A line through so many steps that stays within so many places, if there is one.
    fn affine(&mut self, steps: u32, places: u32) -> Affine {
        let from_end = self.rng.one_in(3);
        let last = self.rng.below(u64::from(places)) as u32;
        if steps > places || self.rng.one_in(4) {
            return Affine { first: last.into(), stride: 0, from_end };
        }
        match self.rng.one_in(2) {
            true => Affine { first: self.rng.between(0, places - steps).into(), stride: 1, from_end },
            false => Affine { first: self.rng.between(steps - 1, places - 1).into(), stride: -1, from_end },
        }
    }
}

struct Reader<'a> {
    chain: u32,
    stage: usize,
    cells: &'a [u32],
    port: &'a Port,
    steps: u32,
}

fn same(wanted: &Port, given: &Port) -> bool {
    wanted.datatype == given.datatype && wanted.shape == given.shape
}

/// Breaks one thing of a growth at random, in the way a careless or hostile plugin might.
pub fn garble(growth: &mut Growth, rng: &mut Rng) {
    let number = |rng: &mut Rng| if rng.one_in(8) { u32::MAX - rng.between(0, 2) } else { rng.between(0, 7) };
    let far =
        |rng: &mut Rng| if rng.one_in(8) { [i64::MIN, -(1 << 53), i64::MAX][rng.below(3) as usize] } else { i64::from(number(rng)) - 2 };
    let reference = |rng: &mut Rng| OutputRef { chain: number(rng), stage: number(rng) % 3, output: number(rng) % 3 };
    let affine = |rng: &mut Rng| {
        let stride = [0, 1, -1, 2, i32::MAX, i32::MIN][rng.below(6) as usize];
        Affine { first: far(rng), stride, from_end: rng.one_in(2) }
    };
    let chains = growth.chains.len() as u64;
    let Some(chain) = growth.chains.get_mut(rng.below(chains) as usize) else { return };
    let stages = chain.stages.len() as u64;
    let Some(stage) = chain.stages.get_mut(rng.below(stages) as usize) else { return };
    if stage.inputs.is_empty() {
        return;
    }
    let input = rng.below(stage.inputs.len() as u64) as usize;
    match rng.below(16) {
        0 => stage.cell = number(rng),
        1 => drop(stage.inputs.pop()),
        2 => stage.inputs[input] = Source::Steps { of: reference(rng), at: affine(rng) },
        3 => stage.inputs[input] = Source::Last(reference(rng)),
        4 => stage.inputs[input] = Source::Rows { tensor: number(rng), at: affine(rng) },
        5 => stage.inputs[input] = Source::Index(affine(rng)),
        6 => {
            let of = (0..number(rng) % 9).map(|_| Node { chain: number(rng), step: number(rng) }).collect();
            stage.inputs[input] = Source::Nodes { stage: number(rng) % 3, output: number(rng) % 3, of };
        }
        7 => stage.inputs[input] = Source::Sibling { stage: number(rng), output: number(rng) },
        8 => chain.length = if rng.one_in(2) { Extent::Fixed(number(rng)) } else { Extent::Like(number(rng)) },
        9 => {
            let [stage, output, to_stage, input] = [0; 4].map(|_: u32| number(rng) % 4);
            chain.feedback.push(Feedback { stage, output, to_stage, input });
        }
        10 => chain.stop = Some((number(rng), number(rng))),
        11 => growth.cancel.push(number(rng)),
        12 => stage.inputs[input] = Source::Frames { tensor: number(rng), at: affine(rng) },
        13 => {
            let of = |rng: &mut Rng| if rng.one_in(2) { SpanOf::Tensor(number(rng) % 3) } else { SpanOf::Chain(reference(rng)) };
            let count = |rng: &mut Rng| if rng.one_in(5) { None } else { Some(number(rng) % 5) };
            let spans = (0..number(rng) % 4).map(|_| Span { of: of(rng), at: affine(rng), every: number(rng), count: count(rng) });
            stage.inputs[input] = Source::Many(spans.collect());
        }
        14 => growth.outputs.push(ResponseTensor { name: "all".to_owned(), from: Gathered::All(reference(rng)), stream: false }),
        _ => {
            let (watch, keep) = (vec![reference(rng)], vec![reference(rng)]);
            let pace = Pace::Every(number(rng));
            growth.next = Some(Continuation { watch, pace, keep, keep_tensors_from: number(rng), state: vec![] });
        }
    }
}
