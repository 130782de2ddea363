//! Graphs at random through the whole engine, under random settings and in random company: every value has the bits that its cell gives when the device computes
//! one row of it and nothing else, node by node, and each of those is what the reference says.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod exact;
mod request;
mod settings;
mod world;

use cellwright_cell_graph::generate::{more_seeds, seeds};
use world::Ends;

/// Worlds that are tried unless somebody asks for more.
const WORLDS: u64 = 60;

fn try_seeds(seeds: std::ops::Range<u64>) -> Ends {
    let mut all = Ends::default();
    for seed in seeds {
        let ends = world::run(seed).unwrap_or_else(|settings| panic!("failed with CELLWRIGHT_SEED={seed}: {settings}"));
        all.add(&ends);
    }
    all
}

/// Or the one in `CELLWRIGHT_SEED`, again and again: threads make of the same requests another order every time.
#[test]
fn any_graphs_in_any_company() {
    let worlds = seeds(WORLDS);
    if worlds.end - worlds.start == 1 {
        for _ in 0..20 {
            let _ = try_seeds(worlds.clone());
        }
        return;
    }
    let ends = try_seeds(worlds);
    eprintln!("{ends:?}");
    assert!(ends.finished > ends.cancelled + ends.lost + ends.otherwise, "most are to be answered: {ends:?}");
    assert!(ends.grown > 0 && ends.cancelled > 0 && ends.lost > 0 && ends.reloads > 0, "{ends:?}");
}

/// As many more as `CELLWRIGHT_SEEDS` says (1,000 if it says nothing), none of which the other test tries.
#[test]
#[ignore = "as long as one likes: CELLWRIGHT_SEEDS=10000 cargo test --release -p cellwright-tests --test suite random -- --ignored"]
fn soak() {
    eprintln!("{:?}", try_seeds(more_seeds(1000)));
}
