//! Cells that take long, and requests that hold much memory.

use std::io::Write as _;
use std::thread;

use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::server::{request, sum};
use cellwright_tests::town::{Town, connect_from, hold, until};

use super::attacks;

type Form = (usize, f64);

attacks! {
    long_steps_run_in_slices = long_steps;
    a_step_takes_no_longer_for_what_it_computes = denormal_steps;
    memory_that_is_held_for_long_is_no_neighbours = held_memory;
}

/// The model with cells that take long, or much memory. Its products average, so that a small number stays
/// small.
fn heavy() -> BundleFolder {
    let bundle = BundleFolder::summing();
    bundle.parameter("describe", "\"heavy\"");
    let square = vec![1.0 / 1024.0; 1024 * 1024];
    bundle.weights(&[
        ("bias", &[4], &[1.0, 2.0, 3.0, 4.0]),
        ("square", &[1024, 1024], &square),
        ("large", &[1 << 16], &vec![0.0; 1 << 16]),
    ]);
    bundle
}

/// A town in which the attacker has that model.
fn town() -> Town {
    let town = Town::start(&[]);
    let uploaded = town.upload(&town.attacker, "heavy", &heavy());
    assert_eq!(uploaded.status, 201, "{}", uploaded.text());
    town
}

/// The body of a request that has so many steps.
fn asking(behaviour: &str, steps: usize) -> Vec<u8> {
    let mut asked = sum(1, steps);
    asked["parameters"] = serde_json::json!({ "behave": behaviour });
    asked.to_string().into_bytes()
}

/// Two requests at a time of steps that take long.
fn steps((requests, fraction): Form, behaviour: &str) {
    let town = town();
    let body = asking(behaviour, 4);
    let attack = || {
        let answer = town.send(&town.attacker, "POST", "/v2/models/heavy/infer", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    town.endures(requests, fraction, |over| {
        thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(|| until(over, attack)))));
    });
}

fn long_steps(form: Form) {
    steps(form, "heavy");
}

fn denormal_steps(form: Form) {
    steps(form, "heavy-denormal");
}

fn held_memory((requests, fraction): Form) {
    let mut town = town();
    // A device's memory is the process's once it has been used.
    town.growth_max += town.device_memory();
    let ask = |rows: usize| request("POST", "/v2/models/heavy/infer", &[("authorization", &town.attacker)], &asking("hold", rows));
    town.endures(requests, fraction, |over| {
        // From 2 GiB down to 256 KiB, so that what one leaves another takes.
        let sizes = (0..14).rev().map(|power| ask(1 << power));
        let mut connections = connect_from(&town.server, [127, 0, 0, 2], 14 * 8);
        for (ask, connections) in sizes.zip(connections.chunks_mut(8)) {
            connections.iter_mut().for_each(|connection| connection.write_all(&ask).expect("the server reads"));
        }
        hold(over, connections);
    });
}
