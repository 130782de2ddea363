//! `bench scheduler`: what deciding costs, with a device that completes every task at once.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use cellwright_command::progress;
use cellwright_command::table::table;
use cellwright_simulator::workload::{Decoding, Lengths, Pairs, Trees};
use cellwright_simulator::{Crowd, Decided, Members, Workload};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::allocations::{self, Allocated};
use crate::cli::SchedulerBenchArguments;

/// Each crowd is measured in so many parts, of which the middle one is reported: what else a machine does falls on few of them.
const PARTS: u32 = 50;
/// Models and tenants of the mix.
const MODELS: u32 = 200;
const TENANTS: u32 = 40;

/// What one crowd cost.
#[derive(Clone, Copy, Debug, Serialize)]
struct Cost {
    in_flight: u32,
    nodes_per_s: f64,
    ns_per_node: f64,
    ns_per_task: f64,
    nodes_per_task: f64,
    requests_per_s: f64,
    allocations_per_request: f64,
    /// When they have just arrived; what says how each node of their graphs stands is counted too.
    bytes_per_request: f64,
}

pub(crate) fn scheduler(arguments: &SchedulerBenchArguments) -> anyhow::Result<()> {
    let crowds = crowds();
    let bar = progress::counter("crowds measured", Some(crowds.len() as u64));
    let mut costs = Vec::new();
    for (name, members) in crowds {
        costs.push((name, measure(members, Duration::from_secs_f64(arguments.seconds), arguments.seed)));
        bar.inc(1);
    }
    bar.finish_and_clear();
    if arguments.json {
        let mut all = Map::new();
        for (name, cost) in &costs {
            all.insert(name.clone(), serde_json::to_value(cost)?);
        }
        return Ok(writeln!(stdout(), "{}", Value::Object(all))?);
    }
    let head = ["", "in flight", "M nodes/s", "ns/node", "ns/task", "nodes/task", "allocations/request", "bytes/request"];
    let rows: Vec<_> = costs.iter().map(|(name, cost)| row(name, cost)).collect();
    Ok(write!(stdout(), "{}", table(&head, &rows))?)
}

fn row(name: &str, cost: &Cost) -> Vec<String> {
    vec![
        name.to_owned(),
        cost.in_flight.to_string(),
        format!("{:.1}", cost.nodes_per_s / 1e6),
        format!("{:.1}", cost.ns_per_node),
        format!("{:.0}", cost.ns_per_task),
        format!("{:.1}", cost.nodes_per_task),
        format!("{:.2}", cost.allocations_per_request),
        format!("{:.0}", cost.bytes_per_request),
    ]
}

/// Chains of sentences' lengths, trees of sentences, sentence pairs, and all of them by 200 models of 40 tenants.
fn crowds() -> Vec<(String, Members)> {
    let chains = || (Workload::lstm(Lengths::EUROPARL), vec![512]);
    let trees = || (Workload::trees(&Trees::treebank(1)), vec![64]);
    let pairs = || (Workload::seq2seq(Pairs::EUROPARL, Decoding::Known), vec![512, 256]);
    let one = |kind, in_flight| Members { kinds: vec![kind], models: 1, tenants: 1, in_flight };
    let mix = Members { kinds: vec![chains(), trees(), pairs()], models: MODELS, tenants: TENANTS, in_flight: 10_000 };
    let crowds = [
        ("chains", one(chains(), 1000)),
        ("chains_10000", one(chains(), 10_000)),
        ("chains_100000", one(chains(), 100_000)),
        ("trees", one(trees(), 1000)),
        ("seq2seq", one(pairs(), 2000)),
        ("mix", mix),
    ];
    crowds.map(|(name, members)| (name.to_owned(), members)).into()
}

fn measure(members: Members, span: Duration, seed: u64) -> Cost {
    let in_flight = members.in_flight;
    let mut crowd = Crowd::new(members, seed);
    let mut held = 0;
    while crowd.prepare_arrivals() {
        let before = allocations::here();
        crowd.decide();
        held += allocations::here().since(before).bytes;
        crowd.take_in();
    }
    // Until it is as it will be: those who came together leave one by one.
    part(&mut crowd, span);
    let mut parts: Vec<_> = (0..PARTS).map(|_| part(&mut crowd, span / PARTS)).collect();
    parts.sort_by(|one, other| per_node(one).total_cmp(&per_node(other)));
    let (spent, decided, _) = parts.get(parts.len() / 2).copied().unwrap_or_default();
    let (times, finished) = parts.iter().fold((0, 0), |sum, (_, decided, allocated)| (sum.0 + allocated.times, sum.1 + decided.finished));
    let ns = spent.as_nanos() as f64;
    let (nodes, tasks) = (decided.nodes.max(1) as f64, decided.tasks.max(1) as f64);
    Cost {
        in_flight,
        nodes_per_s: nodes / ns.max(1.0) * 1e9,
        ns_per_node: ns / nodes,
        ns_per_task: ns / tasks,
        nodes_per_task: nodes / tasks,
        requests_per_s: decided.finished as f64 / ns.max(1.0) * 1e9,
        allocations_per_request: times as f64 / finished.max(1) as f64,
        bytes_per_request: held as f64 / f64::from(in_flight),
    }
}

type Part = (Duration, Decided, Allocated);

fn per_node((spent, decided, _): &Part) -> f64 {
    spent.as_nanos() as f64 / decided.nodes.max(1) as f64
}

/// Decides until so much time was spent deciding.
fn part(crowd: &mut Crowd, span: Duration) -> Part {
    let (mut spent, mut allocated) = (Duration::ZERO, Allocated::default());
    while spent < span {
        crowd.prepare();
        let before = allocations::here();
        let start = Instant::now();
        crowd.decide();
        spent += start.elapsed();
        let during = allocations::here().since(before);
        allocated = Allocated { times: allocated.times + during.times, bytes: allocated.bytes + during.bytes };
        crowd.take_in();
    }
    (spent, crowd.decided(), allocated)
}
