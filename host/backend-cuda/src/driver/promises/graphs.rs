//! What is promised of graphs.

use super::{BYTES, Make, await_word, fill, good, refused};
use crate::driver::{DeviceAddress, Driver, Graph, GraphLaunch, Launch, Stream};

/// A launch of `fill`.
fn filling(driver: &mut dyn Driver, at: DeviceAddress, count: u64, value: u32) -> GraphLaunch {
    let launch = Launch { kernel: good(driver.kernel("fill")), grid: [4, 1, 1], threads: 128, shared_bytes: 0, cooperative: false };
    GraphLaunch { launch, arguments: [at.0, count, u64::from(value)].map(u64::to_ne_bytes).concat() }
}

/// Launches run in their order, with what they were given when their graph was made, each time that it is launched, between what is queued before it and
/// behind it; and a graph that was given back is gone.
pub(super) fn graphs(make: &mut Make<'_>) {
    /// Each fills one half less than the one before.
    const DEEP: usize = 6;
    let mut driver = make();
    let driver = driver.as_mut();
    let (stream, at) = (good(driver.stream()), good(driver.allocate(BYTES)));
    let (down, word) = (good(driver.pinned(2 * BYTES)), good(driver.pinned(8)));
    let count = BYTES as u64 / 4;
    let of = |driver: &mut dyn Driver, first: u32| -> Vec<GraphLaunch> {
        (0..DEEP as u32).map(|number| filling(driver, at, count >> number, first + number)).collect()
    };
    let [mut launches, others, again] = [1, 101, 201].map(|first| of(driver, first));
    takes_its_memory_when_it_is_made(driver, (stream, at), &launches);
    let [graph, other] = [&launches, &others].map(|launches| good(driver.graph(stream, launches)));
    // They were copied.
    launches.iter_mut().for_each(|one| one.arguments.fill(0));
    let want = |first: u32| -> Vec<u32> {
        let value = |place: u64| (0..DEEP as u32).rev().find(|number| place < count >> number).unwrap_or_default();
        (0..count).map(|place| first + value(place)).collect()
    };
    let got = |from: usize| -> Vec<u32> {
        // SAFETY: asked for when the signal behind the download was seen.
        let bytes = unsafe { down.bytes(from..from + BYTES) };
        bytes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect()
    };
    for round in 1..=20 {
        // SAFETY: within what was allocated, as are the graphs' launches.
        unsafe {
            good(fill(driver, stream, at, count, 0x0909_0909));
            good(driver.launch_graph(stream, graph));
            good(driver.launch_graph(stream, graph));
            good(driver.download(stream, at, &down, 0, BYTES));
            good(driver.launch_graph(stream, other));
        }
        good(driver.download(stream, at, &down, BYTES, BYTES));
        good(driver.signal(stream, &word, 0, round));
        good(await_word(driver, &word, 0, round));
        assert!(
            got(0) == want(1) && got(BYTES) == want(101),
            "round {round}: a graph does not run in its order, once, in its stream's place"
        );
    }
    refused("a graph without a launch", driver.graph(stream, &[]));
    let one = filling(driver, at, count, 7);
    refused(
        "too few arguments in a graph",
        driver.graph(stream, &[GraphLaunch { arguments: one.arguments[..16].to_vec(), ..one.clone() }]),
    );
    let together = Launch { cooperative: true, ..one.launch };
    refused("a cooperative launch in a graph", driver.graph(stream, &[one.clone(), GraphLaunch { launch: together, ..one }]));
    // Given back while it is queued.
    // SAFETY: as above.
    good(unsafe { driver.launch_graph(stream, graph) });
    good(driver.release_graph(graph));
    refused("a graph that was given back", driver.release_graph(graph));
    // SAFETY: it is not to run.
    refused("a graph that was given back", unsafe { driver.launch_graph(stream, graph) });
    // SAFETY: it is not to run.
    refused("a graph of another driver", unsafe { driver.launch_graph(stream, Graph(1 << 20)) });
    // Its place may be taken; nobody else's is.
    let again = good(driver.graph(stream, &again));
    // SAFETY: as above.
    good(unsafe { driver.launch_graph(stream, again) });
    good(driver.download(stream, at, &down, 0, BYTES));
    // SAFETY: as above.
    good(unsafe { driver.launch_graph(stream, other) });
    good(driver.download(stream, at, &down, BYTES, BYTES));
    good(driver.signal(stream, &word, 0, 100));
    good(await_word(driver, &word, 0, 100));
    assert!(got(0) == want(201) && got(BYTES) == want(101), "a graph takes another one's place");
}

/// What a graph takes of the device's memory is seen when it is made, and nothing more when it is first launched.
fn takes_its_memory_when_it_is_made(driver: &mut dyn Driver, (stream, at): (Stream, DeviceAddress), launches: &[GraphLaunch]) {
    // What a driver takes for the first kernel that is launched, and for the first graph, is no graph's.
    // SAFETY: within what was allocated, as are the graph's launches.
    good(unsafe { fill(driver, stream, at, BYTES as u64 / 4, 0) });
    let first = good(driver.graph(stream, launches));
    // SAFETY: as above.
    good(unsafe { driver.launch_graph(stream, first) });
    good(driver.synchronize());
    good(driver.release_graph(first));
    let graph = good(driver.graph(stream, launches));
    let made = good(driver.memory_free());
    // SAFETY: as above.
    good(unsafe { driver.launch_graph(stream, graph) });
    good(driver.synchronize());
    let launched = good(driver.memory_free());
    assert!(launched >= made, "a launch of a graph takes {} bytes that its making did not", made - launched);
    good(driver.release_graph(graph));
}
