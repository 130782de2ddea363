//! What a device takes for things: figures to publish with the chip's name, never from an emulated one.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cellwright_backend::{Backend, CellTypeId};
use cellwright_backend_cuda::driver::{DeviceAddress, Done, Driver, GraphLaunch, Launch, Pinned, Stream, promises};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::{Datatype, Tensor};
use cellwright_conformance::cells::{self, Draft};
use serde_json::{Map, Value, json};

use super::Where;
use super::parts::{open, tree_of, weights};

pub(crate) fn done<T>(done: Done<T>) -> T {
    done.unwrap_or_else(|fault| panic!("{fault}"))
}

pub(crate) fn microseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e8).round() / 100.0
}

/// Middle and 99th percentile, in microseconds.
fn percentiles(mut times: Vec<Duration>) -> Value {
    times.sort_unstable();
    let at = |part: usize| times.get(times.len() * part / 100).copied().map_or(f64::NAN, microseconds);
    json!({ "p50_us": at(50), "p99_us": at(99) })
}

/// Looks for a signal without a pause, and now and then whether the device is still there.
fn await_signal(driver: &mut dyn Driver, word: &Pinned, value: u64) {
    let mut looks = 0_u32;
    while word.word(0).load(Ordering::Acquire) != value {
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(1 << 16) {
            done(driver.check());
        }
        std::hint::spin_loop();
    }
}

/// From queueing a signal to seeing it, with nothing before it and behind a small kernel; and what queueing a launch costs.
pub(crate) fn signals(place: Where) -> Value {
    let mut driver = open(place);
    let driver = driver.as_mut();
    let stream = done(driver.stream());
    let at = done(driver.allocate(4096));
    let word = done(driver.pinned(8));
    let mut value = 0;
    let [mut bare, mut behind, mut launches] = [const { Vec::new() }; 3];
    for round in 0..2000 {
        let began = Instant::now();
        value += 1;
        done(driver.signal(stream, &word, 0, value));
        await_signal(driver, &word, value);
        let seen = began.elapsed();
        let began = Instant::now();
        // SAFETY: so much was allocated.
        done(unsafe { promises::fill(driver, stream, at, 1024, round) });
        let launched = began.elapsed();
        value += 1;
        done(driver.signal(stream, &word, 0, value));
        await_signal(driver, &word, value);
        // The first rounds load what is loaded when it is first used.
        if round >= 100 {
            bare.push(seen);
            launches.push(launched);
            behind.push(began.elapsed());
        }
    }
    let calls = calls(driver, (stream, at), &word);
    json!({ "signal": percentiles(bare), "launch_call": percentiles(launches), "launch_and_signal": percentiles(behind), "calls": calls })
}

/// What queueing things costs the thread that does it, each alone and with nothing before it.
fn calls(driver: &mut dyn Driver, (stream, at): (Stream, DeviceAddress), word: &Pinned) -> Value {
    let (other, event) = (done(driver.stream()), done(driver.event()));
    let to = done(driver.allocate(1 << 16));
    let pinned = done(driver.pinned(1 << 16));
    let launch = Launch { kernel: done(driver.kernel("fill")), grid: [4, 1, 1], threads: 128, shared_bytes: 0, cooperative: false };
    let fill = GraphLaunch { launch, arguments: [to.0, 16, 1].map(u64::to_ne_bytes).concat() };
    let graph = done(driver.graph(stream, &vec![fill; 4]));
    let mut figures = Map::new();
    let mut time = |name: &str, driver: &mut dyn Driver, call: &mut dyn FnMut(&mut dyn Driver) -> Done<()>| {
        let times = (0..300).map(|_| {
            let began = Instant::now();
            done(call(driver));
            let took = began.elapsed();
            done(driver.synchronize());
            took
        });
        figures.insert(name.to_owned(), percentiles(times.skip(20).collect()));
    };
    time("upload", driver, &mut |driver| driver.upload(stream, &pinned, 0, to, 1 << 15));
    time("download", driver, &mut |driver| driver.download(stream, to, &pinned, 0, 1 << 15));
    time("copy", driver, &mut |driver| driver.copy(stream, at, to, 512));
    time("record", driver, &mut |driver| driver.record(event, stream));
    time("wait", driver, &mut |driver| driver.wait(other, event));
    time("signal", driver, &mut |driver| driver.signal(stream, word, 0, 1));
    // SAFETY: so much was allocated.
    time("graph_of_4", driver, &mut |driver| unsafe { driver.launch_graph(stream, graph) });
    time("check", driver, &mut |driver| driver.check());
    Value::Object(figures)
}

/// One step of an LSTM of 1024 over 1024.
pub(crate) fn lstm(place: Where) -> Value {
    step(place, &|hidden| cells::lstm("lstm", hidden, hidden, &weights(4, hidden)))
}

/// The same of a GRU.
pub(crate) fn gru(place: Where) -> Value {
    step(place, &|hidden| cells::gru("gru", hidden, hidden, &weights(3, hidden)))
}

/// One inner node of a binary tree of 1024.
pub(crate) fn tree(place: Where) -> Value {
    step(place, &tree_of)
}

/// The likeliest of 30,000 tokens for each state of 1024.
pub(crate) fn decoder(place: Where) -> Value {
    let classes = if matches!(place, Where::Device(_)) { 30_000 } else { 300 };
    step(place, &|hidden| {
        let mut rng = Rng::new(5);
        let mut drawn = |name: &str, shape: &[usize]| {
            let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() / (hidden as f32).sqrt()).collect();
            Tensor::from_f32(name, shape, &values)
        };
        Draft::new("decoder")
            .input("h", Datatype::Fp32, &[hidden])
            .weight(drawn("out.weight", &[classes, hidden]))
            .weight(drawn("out.bias", &[classes]))
            .operator("Gemm", &["h", "out.weight", "out.bias"], &["logits"])
            .with("transB", 1)
            .operator("ArgMax", &["logits"], &["best"])
            .with("axis", 1)
            .with("keepdims", 0)
            .output("best", Datatype::Int64, &[])
    })
}

/// One step of a cell, from the call to the signal, over scratch rows: the least of several runs.
fn step(place: Where, of: &dyn Fn(usize) -> Draft) -> Value {
    let (hidden, batches): (usize, &[u32]) = match place {
        Where::Device(_) => (1024, &[1, 16, 64, 256, 512, 2048]),
        Where::Emulated => (32, &[1, 16]),
    };
    let mut figures = Map::new();
    for (name, precision, tf32) in
        [("f32", Precision::F32, false), ("tf32", Precision::F32, true), ("f16", Precision::F16, false), ("bf16", Precision::Bf16, false)]
    {
        let options = CudaOptions { arena_bytes: Some(64 << 20), tf32, ..CudaOptions::default() };
        let mut worker = CudaWorker::new(open(place), options).unwrap_or_else(|fault| panic!("{fault}"));
        let cell = of(hidden).at(precision).resolve();
        worker.load(CellTypeId(0), &cell).unwrap_or_else(|error| panic!("{error}"));
        for rows in batches {
            let time = worker.time_batch(CellTypeId(0), *rows).unwrap_or_else(|lost| panic!("{lost}"));
            figures.insert(format!("{name}_{rows}_us"), json!(microseconds(time)));
        }
    }
    Value::Object(figures)
}
