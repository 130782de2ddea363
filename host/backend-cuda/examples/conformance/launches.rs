//! The kernels of an LSTM's step as the timings launch them, and how long a graph of launches takes.

use std::time::Duration;

use cellwright_backend_cuda::driver::{Driver, Graph, Kernel, Launch, Stream};

use super::figures::done;

/// i, f, g and o.
pub(crate) const GATES: usize = 4;

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
