//! A step of an LSTM whose input was not multiplied before, in bf16: rows gathered and the worker's own kernel, and as one would put it together of a library's
//! product: rows gathered, one product by cublasLt, gates. A graph of each, side by side in one run, of the same rows, and compared.

use std::time::Duration;

use cellwright_backend_cuda::driver::products::{ProductOperands, ProductShape};
use cellwright_backend_cuda::driver::{DeviceAddress, Driver, Fault, Graph, GraphLaunch, Kernel, Launch, Matrix, Products, Stream};
use cellwright_cell_graph::generate::Rng;
use serde_json::{Map, Value, json};

use super::figures::{done, microseconds};
use super::{Groups, Where};

/// i, f, g and o.
pub(crate) const GATES: usize = 4;
/// What NVIDIA advises for its Hopper GPUs.
const WORKSPACE_BYTES: usize = 32 << 20;
/// Threads of a block of the kernels below.
const THREADS: u32 = 128;
/// Slots of states and of inputs, from which the rows of a batch are taken out of their order.
const STRIDE: usize = 3;

/// What gathers rows, and what computes gates.
const GATHER: &str = include_str!("gather.cu");
const COMPUTE: &str = include_str!("gates.cu");

/// The worker's own kernels: rows and units of a tile, threads, and slabs for which a block has room (`kernels/abi.h`).
pub(crate) const OWN: [(&str, [u32; 4]); 4] = [
    ("lstm_step_64x8", [64, 8, 256, 16]),
    ("lstm_step_64x16", [64, 16, 256, 12]),
    ("lstm_step_64x32", [64, 32, 256, 8]),
    ("lstm_step_128x32", [128, 32, 384, 6]),
];

/// One of these, of so many gates, rows and units.
pub(crate) const fn launch(
    kernel: Kernel,
    [rows, units, threads, slabs]: [u32; 4],
    (gates, all_rows, all_units): (u32, u32, u32),
) -> Launch {
    let blocks = all_rows.div_ceil(rows) * all_units.div_ceil(units);
    let shared_bytes = slabs * (rows + gates * units) * 128;
    Launch { kernel, grid: [blocks, 1, 1], threads, shared_bytes, cooperative: false }
}

pub(crate) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The nearest bf16; of two the even one.
fn half(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

pub(crate) fn halves(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| half(*value).to_le_bytes()).collect()
}

/// A cell as wide as its input, and a batch of it, on the device.
struct Batch {
    rows: usize,
    units: usize,
    /// One address for each row: of x, h, c, and of where h and c go.
    lists: [DeviceAddress; 5],
    h_out: DeviceAddress,
    c_out: DeviceAddress,
    bias: DeviceAddress,
    /// Of the same numbers, as the library and as the worker's kernels read them.
    weights: [DeviceAddress; 2],
}

/// Packed for the worker's kernels (`kernels/abi.h`), of rows i|f|g|o, each of x in front of h; `units` is a multiple of 64.
fn packed(weights: &[f32], units: usize) -> Vec<f32> {
    let slabs = 2 * units / 64;
    let mut packed = vec![0.0; weights.len()];
    for (row, of_row) in weights.chunks_exact(2 * units).enumerate() {
        let (gate, unit) = (row / units, row % units);
        let j = gate * 8 + unit % 8;
        for (k, weight) in of_row.iter().enumerate() {
            packed[(unit / 8 * slabs + k / 64) * GATES * 512 + j * 64 + ((k % 64 / 8) ^ (j % 8)) * 8 + k % 8] = *weight;
        }
    }
    packed
}

impl Batch {
    fn new(driver: &mut dyn Driver, stream: Stream, (rows, units): (usize, usize)) -> Self {
        let mut rng = Rng::new(7);
        let mut drawn = |count: usize, size: f32| -> Vec<f32> { (0..count).map(|_| rng.float() * size).collect() };
        let weights = drawn(GATES * units * 2 * units, 1.0 / (units as f32).sqrt());
        let (x, h, c) = (drawn(rows * STRIDE * units, 1.0), drawn(rows * STRIDE * units, 1.0), drawn(rows * STRIDE * units, 1.0));
        let bias = drawn(GATES * units, 1.0);
        let mut put = |bytes: &[u8]| {
            let at = done(driver.allocate(bytes.len()));
            done(driver.write(stream, at, bytes));
            at
        };
        let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        let weights = [put(&halves(&weights)), put(&halves(&packed(&weights, units)))];
        let from = [put(&halves(&x)), put(&halves(&h)), put(&floats(&c))];
        let (h_out, c_out, bias) = (put(&vec![0; rows * units * 2]), put(&vec![0; rows * units * 4]), put(&floats(&bias)));
        // Neighbours in the batch are none in memory.
        let mut list = |at: DeviceAddress, bytes: usize, slot: &dyn Fn(usize) -> usize| {
            put(&words(&(0..rows).map(|row| at.plus(slot(row) * units * bytes).0).collect::<Vec<_>>()))
        };
        let scattered = |row: usize| (rows - 1 - row) * STRIDE + row % STRIDE;
        let [x, h, c] = [(from[0], 2), (from[1], 2), (from[2], 4)].map(|(at, bytes)| list(at, bytes, &scattered));
        let lists = [x, h, c, list(h_out, 2, &|row| row), list(c_out, 4, &|row| row)];
        Self { rows, units, lists, h_out, c_out, bias, weights }
    }

    /// One of the worker's own kernels, of rows that were gathered there, x in front of h.
    fn own(&self, driver: &mut dyn Driver, (kernel, tile): (Kernel, [u32; 4]), gathered: DeviceAddress) -> GraphLaunch {
        let (all_rows, all_units) = (self.rows as u32, self.units as u32);
        let launch = launch(kernel, tile, (GATES as u32, all_rows, all_units));
        let [_, _, c, h_out, c_out] = self.lists.map(|list| list.0);
        let pair = |one: u32, other: u32| u64::from(one) | u64::from(other) << 32;
        let [x, h] = [0, self.units].map(|column| {
            let matrix = Matrix { at: gathered.plus(column * 2), columns: all_units, rows: all_rows, stride: all_units * 4 };
            done(driver.tensor_map(&matrix))
        });
        // `LstmStepArguments` of `kernels/abi.h`.
        let columns = [pair(0, all_units), pair(2 * all_units, 3 * all_units)];
        let rows = [0, c, 0, h_out, c_out, 0, pair(0, all_rows), 0, self.weights[1].0, self.bias.0, pair(all_units, all_units)];
        GraphLaunch { launch, arguments: words(&[x.as_slice(), &h, &rows, &columns, &[0, 0, 0]].concat()) }
    }

    /// One of the kernels that are compiled here, of so many threads in all.
    fn compiled(&self, kernel: Kernel, blobs: DeviceAddress, (stride, threads): (usize, usize)) -> GraphLaunch {
        let grid = [(threads as u32).div_ceil(THREADS), 1, 1];
        let launch = Launch { kernel, grid, threads: THREADS, shared_bytes: 0, cooperative: false };
        // `CompiledGroupArguments` of `kernels/abi_group.h`; its last word but one says how many rows there are.
        GraphLaunch { launch, arguments: words(&[0, blobs.0, stride as u64 | (self.rows as u64) << 32, 0]) }
    }

    /// h and c as they were left; they are forgotten there.
    fn left(&self, driver: &mut dyn Driver, stream: Stream) -> Vec<f32> {
        let count = self.rows * self.units;
        let (mut h, mut c) = (vec![0; count * 2], vec![0; count * 4]);
        done(driver.read(stream, self.h_out, &mut h));
        done(driver.read(stream, self.c_out, &mut c));
        done(driver.zero(stream, self.h_out, h.len()));
        done(driver.zero(stream, self.c_out, c.len()));
        let h = h.as_chunks().0.iter().map(|half| f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16));
        h.chain(c.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word))).collect()
    }
}

/// The middle one.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// A graph's time on the device when many are queued one behind the other: the median of a few.
pub(crate) fn time(driver: &mut dyn Driver, stream: Stream, graph: Graph, (rounds, launches): (u32, u32)) -> Duration {
    let (from, to) = (done(driver.event()), done(driver.event()));
    let mut times = Vec::new();
    for _ in 0..rounds {
        done(driver.record(from, stream));
        for _ in 0..launches {
            // SAFETY: what the graph names was allocated, and is not given back.
            done(unsafe { driver.launch_graph(stream, graph) });
        }
        done(driver.record(to, stream));
        done(driver.synchronize());
        times.push(done(driver.elapsed(from, to)) / launches);
    }
    median(times)
}

/// What both take, at batches of 64 and of 512, or why that cannot be said.
pub(crate) fn step(place: Where) -> Value {
    let mut driver = place.open_with(Groups::Compiled).unwrap_or_else(|why| panic!("{why}"));
    match compared(driver.as_mut(), place) {
        Ok(figures) => figures,
        Err(why) => {
            eprintln!("conformance: a step by a library's product is left out, because {why}");
            json!({ "left_out": why })
        }
    }
}

fn compared(driver: &mut dyn Driver, place: Where) -> Result<Value, String> {
    let (units, batches, effort): (usize, &[usize], (u32, u32)) = match place {
        Where::Device(_) => (1024, &[64, 512], (20, 200)),
        Where::Emulated => (64, &[5], (1, 1)),
    };
    let library = driver.products()?.library();
    driver.compiler().map_err(|why| format!("nobody compiles its gathering and its gates: {why}"))?;
    let own = OWN.iter().map(|(name, tile)| Ok((*name, driver.kernel(name)?, *tile))).collect::<Result<Vec<_>, Fault>>();
    let own = own.map_err(|fault| format!("the device has none of the worker's own kernels: {fault}"))?;
    let [gather, gates] = [GATHER, COMPUTE].map(|text| done(driver.compiled(text)));
    let (Some(gather), Some(gates)) = (gather, gates) else { panic!("the compiler does not take the kernels of the comparison") };
    let stream = done(driver.stream());
    let workspace = done(driver.allocate(WORKSPACE_BYTES));
    let mut figures = Map::from_iter([("library".to_owned(), json!(library))]);
    for rows in batches {
        let batch = Batch::new(driver, stream, (*rows, units));
        let (x, y) = (done(driver.allocate(rows * 2 * units * 2)), done(driver.allocate(rows * GATES * units * 4)));
        let mut addresses = |list: &[DeviceAddress]| {
            let bytes = words(&list.iter().map(|address| address.0).collect::<Vec<_>>());
            let at = done(driver.allocate(bytes.len()));
            done(driver.write(stream, at, &bytes));
            at
        };
        let [x_list, h, c, h_out, c_out] = batch.lists;
        let (to_gather, to_compute) = (addresses(&[x_list, h, x]), addresses(&[y, batch.bias, c, h_out, c_out]));
        let before = [batch.compiled(gather, to_gather, (units * 2, rows * 2 * units / 8))];
        let behind = [batch.compiled(gates, to_compute, (units, rows * units / 2))];
        let mut least: [Option<(Duration, String)>; 2] = [None, None];
        let mut of_own = Vec::new();
        for (name, kernel, tile) in &own {
            let launches = [before[0].clone(), batch.own(driver, (*kernel, *tile), x)];
            let graph = done(driver.graph(stream, &launches));
            let took = time(driver, stream, graph, effort);
            of_own = batch.left(driver, stream);
            keep(&mut least[0], (took, (*name).to_owned()));
            done(driver.release_graph(graph));
        }
        assert!(of_own.iter().all(|value| value.is_finite()) && of_own.iter().any(|value| *value != 0.0), "a step leaves no numbers");
        let shape = ProductShape { rows: *rows as u32, k: 2 * units as u32, n: (GATES * units) as u32 };
        let plans = done(of(driver).plans(shape, WORKSPACE_BYTES));
        assert!(!plans.is_empty(), "{library} has no product for {shape:?}");
        let operands = ProductOperands { x, weights: batch.weights[0], y, workspace };
        for (number, plan) in plans.iter().enumerate() {
            // Its kernels are loaded when they first run, which no graph should begin with.
            // SAFETY: so much was allocated, and is not given back.
            done(unsafe { of(driver).multiply(stream, *plan, &operands) });
            // SAFETY: as above.
            let graph = done(unsafe { of(driver).graph(&before, (*plan, &operands), &behind) });
            let took = time(driver, stream, graph, effort);
            let of_library = batch.left(driver, stream);
            let off = of_own.iter().zip(&of_library).map(|(own, other)| (own - other).abs()).fold(0.0, f32::max);
            assert!(off < 2e-2, "{rows} rows: the step by {library} is off by {off}");
            keep(&mut least[1], (took, format!("plan {number}")));
            done(driver.release_graph(graph));
        }
        let [(own, tile), (other, plan)] = least.map(|least| least.unwrap_or_default());
        figures.insert(format!("own_{rows}_us"), json!(microseconds(own)));
        figures.insert(format!("own_{rows}"), json!(tile));
        figures.insert(format!("library_{rows}_us"), json!(microseconds(other)));
        figures.insert(format!("library_{rows}"), json!(plan));
        figures.insert(format!("of_library_{rows}"), json!((own.as_secs_f64() / other.as_secs_f64() * 1e3).round() / 1e3));
    }
    Ok(Value::Object(figures))
}

fn keep(least: &mut Option<(Duration, String)>, one: (Duration, String)) {
    if least.as_ref().is_none_or(|least| one.0 < least.0) {
        *least = Some(one);
    }
}

fn of(driver: &mut dyn Driver) -> &mut dyn Products {
    driver.products().unwrap_or_else(|why| panic!("the library is gone, because {why}"))
}
