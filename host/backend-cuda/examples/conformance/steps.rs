//! What a step of an LSTM takes on the device whose input was multiplied before, by each of the worker's own kernels for it, and what multiplies the input:
//! launches one behind the other in a graph, or steps of one launch, with nothing of the worker around them. In bf16, of 1024 units.

use cellwright_backend_cuda::driver::{DeviceAddress, Driver, GraphLaunch, Launch, Matrix, Stream};
use cellwright_cell_graph::generate::Rng;
use serde_json::{Map, Value, json};

use super::Where;
use super::figures::{done, microseconds};
use super::launches::{GATES, OWN, halves, launch, median, time, words};
use super::parts::open;

/// Steps of a graph, or of a launch that stays.
const STEPS: usize = 32;
/// Rows of what is known of gates, from which those of a batch are taken out of their order.
const KNOWN: usize = 4096;

/// Kernels of several steps: as those of one step, and whether a block's weights stay.
const QUEUES: [(&str, [u32; 4], bool); 4] = [
    ("lstm_resident_64x8", [64, 8, 256, 8], true),
    ("lstm_resident_64x16", [64, 16, 256, 8], true),
    ("lstm_queue_64x32", [64, 32, 256, 8], false),
    ("lstm_queue_128x32", [128, 32, 384, 6], false),
];

/// Products by a weight of 1024 by 4096, by the rows of their tiles.
const PRODUCTS: [(&str, u32); 3] = [("product_bf16_16", 16), ("product_bf16_64", 64), ("product_bf16_128", 128)];
/// The same by warpgroups, of rows that are rounded already: rows and columns of a tile, threads, and slabs on their way at once.
const WIDE: [(&str, [u32; 4]); 5] = [
    ("wide_bf16_64x64", [64, 64, 256, 12]),
    ("wide_bf16_128x64", [128, 64, 384, 8]),
    ("wide_bf16_128x128", [128, 128, 384, 6]),
    ("wide_bf16_128x256", [128, 256, 384, 4]),
    ("wide_bf16_turns_128x128", [128, 128, 384, 6]),
];

/// Steps whose blocks have tiles by turns, no more of them than run at once: which nobody takes until it is known what they take.
const TURNS: [(&str, [u32; 4]); 1] = [("lstm_turns_128x32", [128, 32, 384, 6])];

const fn pair(one: u32, other: u32) -> u64 {
    one as u64 | (other as u64) << 32
}

/// Nodes of a binary tree: tiles as those of one step.
const NODES: [(&str, [u32; 4]); 4] = [
    ("tree_step_64x8", [64, 8, 256, 16]),
    ("tree_step_64x16", [64, 16, 256, 12]),
    ("tree_step_64x32", [64, 32, 256, 6]),
    ("tree_step_128x32", [128, 32, 384, 5]),
];
/// Gates of a node.
const NODE_GATES: usize = 5;
/// The tiles by which a decoder chooses; the worker takes the first.
const CHOOSES: [(&str, [u32; 4]); 2] =
    [("wide_best_bf16_128x256", [128, 256, 384, 4]), ("wide_best_bf16_turns_128x128", [128, 128, 384, 6])];

/// How often a graph has what is the same again.
const REPEATED: usize = 8;

fn repeated(launches: &[GraphLaunch]) -> Vec<GraphLaunch> {
    std::iter::repeat_n(launches, REPEATED).flatten().cloned().collect()
}

/// `TensorMap` of `kernels/abi.h` of rows of so many units.
fn map(driver: &mut dyn Driver, at: DeviceAddress, (rows, units): (u32, u32)) -> [u64; 16] {
    done(driver.tensor_map(&Matrix { at, columns: units, rows, stride: units * 2 }))
}

/// `WideArguments` of `kernels/abi_best.h`: a product of one term, whose x that is, of which so many are kept.
fn by_warpgroups(x: [u64; 16], product: &[u64], k: u32) -> Vec<u64> {
    [x.as_slice(), &[0; 7 * 16], product, &[pair(k, 0)]].concat()
}

/// States and what is known, on the device: h twice, from one of which a step goes to the other.
struct Cell {
    units: u32,
    /// Rows of either h, of which the second lies behind the first.
    rows: u32,
    h: [DeviceAddress; 2],
    c: DeviceAddress,
    known: DeviceAddress,
    weights: DeviceAddress,
    bias: DeviceAddress,
}

impl Cell {
    fn new(driver: &mut dyn Driver, stream: Stream, (rows, units): (usize, usize)) -> Self {
        let mut rng = Rng::new(7);
        let mut drawn = |count: usize, size: f32| -> Vec<f32> { (0..count).map(|_| rng.float() * size).collect() };
        // However they are packed, a step takes as long.
        let weights = halves(&drawn(GATES * units * units, 1.0 / (units as f32).sqrt()));
        let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        let (h, c, known) =
            (halves(&drawn(rows * units, 1.0)), floats(&drawn(rows * units, 1.0)), floats(&drawn(KNOWN * GATES * units, 1.0)));
        let bias = floats(&drawn(GATES * units, 1.0));
        let mut put = |bytes: &[u8]| put(driver, stream, bytes);
        let both = put(&[h.as_slice(), &h].concat());
        Self {
            units: units as u32,
            rows: rows as u32,
            h: [both, both.plus(h.len())],
            c: put(&c),
            known: put(&known),
            weights: put(&weights),
            bias: put(&bias),
        }
    }

    /// `LstmRows` of `kernels/abi.h` of a batch's step.
    fn step(&self, driver: &mut dyn Driver, stream: Stream, (rows, number): (usize, usize)) -> [u64; 8] {
        let units = self.units as usize;
        let of = |at: DeviceAddress, bytes: usize| (0..rows).map(|row| at.plus(row * units * bytes).0).collect::<Vec<_>>();
        let known = (0..rows).map(|row| self.known.plus((row * 1021 + number * 331) % KNOWN * GATES * units * 4).0);
        let lists = [of(self.h[1 - number % 2], 2), of(self.c, 4), known.collect()];
        let [h_next, c, begin] = lists.map(|list| put(driver, stream, &words(&list)).0);
        [h_next, c, begin, 0, c, 0, pair((number % 2) as u32 * self.rows, rows as u32), 0]
    }

    /// Both h, as launches are given them.
    fn states(&self, driver: &mut dyn Driver) -> [u64; 16] {
        map(driver, self.h[0], (2 * self.rows, self.units))
    }

    /// What a launch takes of a step of these rows.
    fn arguments(&self, driver: &mut dyn Driver, step: &[u64; 8]) -> Vec<u8> {
        let middle = [self.weights.0, self.bias.0, pair(0, self.units)];
        words(&[[0; 16].as_slice(), &self.states(driver), step, &middle, &self.columns(), &[0, 0, 0]].concat())
    }

    /// What a step of so many rows leaves of h and c, which it does not change for others.
    fn left(&self, driver: &mut dyn Driver, stream: Stream, (launch, step, rows): (&Launch, &[u64; 8], usize)) -> [Vec<u8>; 2] {
        let bytes = rows * self.units as usize;
        let (mut before, mut h, mut c) = (vec![0; bytes * 4], vec![0; bytes * 2], vec![0; bytes * 4]);
        done(driver.read(stream, self.c, &mut before));
        done(driver.zero(stream, self.h[1], h.len()));
        let arguments = self.arguments(driver, step);
        // SAFETY: the kernel takes this structure; all that it names was allocated, and is not given back.
        done(unsafe { driver.launch(stream, launch, &arguments) });
        done(driver.read(stream, self.h[1], &mut h));
        done(driver.read(stream, self.c, &mut c));
        done(driver.write(stream, self.c, &before));
        [h, c]
    }

    fn columns(&self) -> [u64; 2] {
        [pair(0, self.units), pair(2 * self.units, 3 * self.units)]
    }
}

fn put(driver: &mut dyn Driver, stream: Stream, bytes: &[u8]) -> DeviceAddress {
    let at = done(driver.allocate(bytes.len()));
    done(driver.write(stream, at, bytes));
    at
}

/// A cell on a device, and figures of its steps.
struct Bench {
    driver: Box<dyn Driver>,
    stream: Stream,
    cell: Cell,
    /// Numbers of rows.
    batches: &'static [usize],
    /// How often a graph is timed, and how often it is launched each time.
    effort: (u32, u32),
    /// What a decoder chooses of.
    words: u32,
    figures: Map<String, Value>,
}

impl Bench {
    fn new(place: Where) -> Self {
        let mut driver = open(place);
        let (units, batches, effort): (usize, &[usize], (u32, u32)) = match place {
            Where::Device(_) => (1024, &[1, 64, 128, 256, 512, 1024, 2048], (20, 10)),
            Where::Emulated => (64, &[5], (1, 1)),
        };
        let stream = done(driver.stream());
        let most = batches.iter().copied().max().unwrap_or_default();
        let cell = Cell::new(driver.as_mut(), stream, (most, units));
        let words = if matches!(place, Where::Device(_)) { 30_000 } else { 300 };
        Self { driver, stream, cell, batches, effort, words, figures: Map::new() }
    }

    fn keep(&mut self, name: &str, rows: usize, took: f64) {
        self.figures.insert(format!("{name}_{rows}_us"), json!(took));
    }

    fn steps(&mut self, rows: usize) -> Vec<[u64; 8]> {
        (0..STEPS).map(|number| self.cell.step(self.driver.as_mut(), self.stream, (rows, number))).collect()
    }

    /// Those of these kernels that the device has, launched for a step of so many rows.
    fn launches(&mut self, kernels: &[(&'static str, [u32; 4])], gates: u32, rows: usize) -> Vec<(&'static str, Launch)> {
        let of = |(name, tile): &(&'static str, [u32; 4])| {
            let kernel = self.driver.kernel(name).ok()?;
            Some((*name, launch(kernel, *tile, (gates, rows as u32, self.cell.units))))
        };
        kernels.iter().filter_map(of).collect()
    }

    /// The same of blocks that have tiles by turns.
    fn launches_by_turns(&mut self, rows: usize) -> Vec<(&'static str, Launch)> {
        let multiprocessors = self.driver.facts().multiprocessors;
        let mut launches = self.launches(&TURNS, GATES as u32, rows);
        launches.iter_mut().for_each(|(_, launch)| launch.grid[0] = launch.grid[0].min(multiprocessors));
        launches
    }

    fn left(&mut self, launch: &Launch, step: &[u64; 8], rows: usize) -> [Vec<u8>; 2] {
        self.cell.left(self.driver.as_mut(), self.stream, (launch, step, rows))
    }

    /// Times a graph of so many of a thing.
    fn time(&mut self, (name, rows): (&str, usize), launches: &[GraphLaunch], count: usize) {
        let (driver, stream) = (self.driver.as_mut(), self.stream);
        let graph = done(driver.graph(stream, launches));
        let took = time(driver, stream, graph, self.effort);
        done(driver.release_graph(graph));
        self.keep(name, rows, microseconds(took / count as u32));
    }

    /// Times a kernel of one step.
    fn time_steps(&mut self, (name, launch): (&str, Launch), steps: &[[u64; 8]], rows: usize) {
        let (driver, cell) = (self.driver.as_mut(), &self.cell);
        let of_step = |step: &[u64; 8]| GraphLaunch { launch, arguments: cell.arguments(driver, step) };
        let launches: Vec<GraphLaunch> = steps.iter().map(of_step).collect();
        self.time((name, rows), &launches, steps.len());
    }

    /// Times kernels of several steps.
    fn time_queues(&mut self, steps: &[[u64; 8]], rows: usize) {
        let stream = self.stream;
        let queue = put(self.driver.as_mut(), stream, &words(&steps.concat()));
        let counter = done(self.driver.allocate(16));
        for (name, tile, is_resident) in QUEUES {
            let (driver, cell) = (self.driver.as_mut(), &self.cell);
            let Ok(kernel) = driver.kernel(name) else { continue };
            let [tile_rows, tile_units, threads, stages] = tile;
            let across = cell.units.div_ceil(tile_units);
            let columns = if is_resident { cell.units.div_ceil(64) } else { stages } * GATES as u32 * tile_units;
            let shared_bytes = (stages * tile_rows + columns) * 128;
            let resident = done(driver.resident_blocks(kernel, threads, shared_bytes));
            let most = if is_resident { resident / across * across } else { resident };
            let blocks = ((rows as u32).div_ceil(tile_rows) * across).min(most);
            if blocks == 0 {
                continue;
            }
            let launch = Launch { kernel, grid: [blocks, 1, 1], threads, shared_bytes, cooperative: true };
            let middle = [cell.weights.0, cell.bias.0, pair(STEPS as u32, 0), pair(cell.units, 0)];
            let states = cell.states(driver);
            let arguments = [[0; 16].as_slice(), &states, &[queue.0, counter.0, 0], &middle, &cell.columns(), &[0; 7]].concat();
            let arguments = words(&arguments);
            let (from, to) = (done(driver.event()), done(driver.event()));
            let mut times = Vec::new();
            for _ in 0..self.effort.0 {
                done(driver.zero(stream, counter, 16));
                done(driver.record(from, stream));
                // SAFETY: the kernel takes this structure; all that it names was allocated, and is not given back.
                done(unsafe { driver.launch(stream, &launch, &arguments) });
                done(driver.record(to, stream));
                done(driver.synchronize());
                times.push(done(driver.elapsed(from, to)) / STEPS as u32);
            }
            self.keep(name, rows, microseconds(median(times)));
        }
    }

    /// Times what multiplies the input.
    fn time_products(&mut self, rows: usize) {
        let (all_rows, units) = (rows as u32, self.cell.units);
        let n = GATES as u32 * units;
        let y = done(self.driver.allocate(rows * n as usize * 4));
        // As of a frame, a box of rows is there as a whole.
        let whole = all_rows.next_multiple_of(64);
        let x = put(self.driver.as_mut(), self.stream, &vec![1; (whole * units * 4) as usize]);
        let narrow = PRODUCTS.map(|(name, tile)| (name, [n.div_ceil(64), all_rows.div_ceil(tile)], [128, 4 * (tile * 128 + 4096), 4]));
        let multiprocessors = self.driver.facts().multiprocessors;
        let wide = WIDE.map(|(name, [tile_rows, columns, threads, stages])| {
            let tiles = all_rows.div_ceil(tile_rows) * n.div_ceil(columns);
            (name, [tiles.min(multiprocessors), 1], [threads, stages * (tile_rows + columns) * 128, 2])
        });
        for (name, [across, down], [threads, shared_bytes, x_bytes]) in narrow.into_iter().chain(wide) {
            let Ok(kernel) = self.driver.kernel(name) else { continue };
            let launch = Launch { kernel, grid: [across, down, 1], threads, shared_bytes, cooperative: false };
            let mut arguments = vec![x.0, self.cell.weights.0, pair(units * x_bytes, units)];
            arguments.resize(24, 0);
            arguments.extend([0, self.cell.bias.0, y.0, 0, pair(0, n * 4), pair(1, all_rows), pair(n, 0)]);
            if x_bytes == 2 {
                arguments = by_warpgroups(map(self.driver.as_mut(), x, (whole, units)), &arguments, 0);
            }
            self.time((name, rows), &repeated(&[GraphLaunch { launch, arguments: words(&arguments) }]), REPEATED);
        }
        self.free(&[x, y]);
    }
}

impl Bench {
    /// Times nodes of trees whose children are other rows, one behind the other.
    fn time_nodes(&mut self, rows: usize) {
        let units = self.cell.units as usize;
        let (driver, stream, h, c) = (self.driver.as_mut(), self.stream, self.cell.h, self.cell.c);
        let weights = put(driver, stream, &halves(&vec![0.01; 2 * NODE_GATES * units * units]));
        let [of_right, c_out, h_out] = [(); 3].map(|()| done(driver.allocate(rows * units * 4)));
        done(driver.copy(stream, c, of_right, rows * units * 4));
        let of = |at: DeviceAddress, bytes: usize| words(&(0..rows).map(|row| at.plus(row * units * bytes).0).collect::<Vec<_>>());
        let lists = [of(c, 4), of(of_right, 4), of(c_out, 4), of(h_out, 4)];
        let lists = lists.map(|list| put(driver, stream, &list));
        let [c_left, c_right, to_c, to_h] = lists.map(|list| list.0);
        let u = self.cell.units;
        let [left, right] = h.map(|h| map(driver, h, (self.cell.rows, u)));
        let columns = [pair(0, u), pair(2 * u, 3 * u), pair(4 * u, 0)];
        // `TreeStepArguments` of `kernels/abi.h`.
        let rows_of = [0, c_left, 0, 0, to_c, to_h, pair(0, rows as u32), 0];
        let arguments = [left.as_slice(), &right, &rows_of, &[c_right, weights.0, 0, pair(u, 0)], &columns, &[0]].concat();
        for (name, launch) in self.launches(&NODES, NODE_GATES as u32, rows) {
            self.time((name, rows), &repeated(&[GraphLaunch { launch, arguments: words(&arguments) }]), REPEATED);
        }
        self.free(&[weights, of_right, c_out, h_out]);
        self.free(&lists);
    }

    /// Times a decoder's steps, each one of an LSTM whose input was multiplied before and the likeliest word of its h: the two launches that find that, then
    /// all three.
    fn time_decoder(&mut self, rows: usize) {
        let (all_rows, units, n) = (rows as u32, self.cell.units, self.words);
        let (driver, stream) = (self.driver.as_mut(), self.stream);
        let Ok(merges) = driver.kernel("best_of_panels") else { return };
        let mut rng = Rng::new(11);
        let drawn: Vec<f32> = (0..(n.next_multiple_of(64) * units) as usize).map(|_| rng.float()).collect();
        let (weights, bias) = (put(driver, stream, &halves(&drawn)), put(driver, stream, &vec![0; n as usize * 4]));
        let panels = n.div_ceil(64);
        let stride = (panels * 8).next_multiple_of(16);
        let [candidates, chosen] = [(); 2].map(|()| done(driver.allocate(rows * stride as usize)));
        let merge = Launch { kernel: merges, grid: [all_rows, 1, 1], threads: 128, shared_bytes: 0, cooperative: false };
        let step = self.cell.step(driver, stream, (rows, 0));
        // `ProductArguments` of `kernels/abi.h`, and `BestArguments` of `kernels/abi_best.h`.
        let mut arguments = vec![self.cell.h[1].0, weights.0, pair(units * 2, units)];
        arguments.resize(24, 0);
        arguments.extend([0, bias.0, candidates.0, 0, pair(0, stride), pair(1, all_rows), pair(n, 0)]);
        let arguments = by_warpgroups(map(driver, self.cell.h[1], (self.cell.rows, units)), &arguments, 1);
        let of_panels = [candidates.0, 0, chosen.0, pair(stride, panels), pair(1, 0), 0];
        let mut first: Option<Vec<u8>> = None;
        let mut all = Vec::new();
        for ((name, tile), what) in CHOOSES.iter().zip(["", "_by_turns"]) {
            let (driver, [tile_rows, columns, threads, slabs]) = (self.driver.as_mut(), *tile);
            let Ok(kernel) = driver.kernel(name) else { continue };
            let tiles = all_rows.div_ceil(tile_rows) * n.div_ceil(columns);
            let grid = [tiles.min(driver.facts().multiprocessors), 1, 1];
            let choose = Launch { kernel, grid, threads, shared_bytes: slabs * (tile_rows + columns) * 128, cooperative: false };
            let found =
                [GraphLaunch { launch: choose, arguments: words(&arguments) }, GraphLaunch { launch: merge, arguments: words(&of_panels) }];
            let mut left = vec![0; rows * stride as usize];
            for buffer in [candidates, chosen] {
                done(driver.zero(stream, buffer, left.len()));
            }
            self.time((&format!("best_of_{n}{what}"), rows), &repeated(&found), REPEATED);
            done(self.driver.read(stream, chosen, &mut left));
            assert!(first.get_or_insert_with(|| left.clone()) == &left, "{name} chooses others of {rows} rows than the first kernel");
            all.push((what, found));
        }
        // Steps leave another h.
        for (what, found) in all {
            for (name, launch) in self.launches(&OWN, GATES as u32, rows) {
                let before = GraphLaunch { launch, arguments: self.cell.arguments(self.driver.as_mut(), &step) };
                self.time((&format!("decoder{what}_by_{name}"), rows), &repeated(&[&[before], found.as_slice()].concat()), REPEATED);
            }
        }
        self.free(&[weights, bias, candidates, chosen]);
    }

    fn free(&mut self, addresses: &[DeviceAddress]) {
        addresses.iter().for_each(|address| done(self.driver.free(*address)));
    }
}

/// What a tree's node and a decoder's step take, of 1024 units.
pub(crate) fn composed(place: Where) -> Value {
    let mut bench = Bench::new(place);
    for rows in bench.batches.iter().copied() {
        bench.time_nodes(rows);
        if [5, 64, 256, 512].contains(&rows) {
            bench.time_decoder(rows);
        }
    }
    let has_kernels = bench.driver.facts().capability == (9, 0);
    assert_eq!(
        bench.figures.keys().any(|name| name.starts_with("decoder_")),
        has_kernels,
        "kernels of 9.0 are missed, or on another device"
    );
    Value::Object(bench.figures)
}

pub(crate) fn times(place: Where) -> Value {
    let mut bench = Bench::new(place);
    for rows in bench.batches.iter().copied() {
        let steps = bench.steps(rows);
        let kernels = [bench.launches(&OWN, GATES as u32, rows), bench.launches_by_turns(rows)].concat();
        let mut first: Option<[Vec<u8>; 2]> = None;
        for (name, launch) in &kernels {
            let left = bench.left(launch, &steps[0], rows);
            assert!(first.get_or_insert_with(|| left.clone()) == &left, "{name} leaves other bits of {rows} rows than the first kernel");
        }
        for kernel in kernels {
            bench.time_steps(kernel, &steps, rows);
        }
        bench.time_queues(&steps, rows);
        bench.time_products(rows);
    }
    Value::Object(bench.figures)
}
