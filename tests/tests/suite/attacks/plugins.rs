//! Plugins that take as much of the processors as they can have.

use std::thread;

use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::server::sum;
use cellwright_tests::town::{Town, until};
use serde_json::{Value, json};

use super::attacks;

type Form = (usize, f64);

attacks! {
    a_plugin_that_was_quick_and_then_loops_has_a_part_of_the_threads = loops;
}

fn looping() -> Value {
    let mut asked = sum(1, 3);
    asked["parameters"] = json!({ "behave": "loop", "timeout": 2_000_000 });
    asked
}

fn loops((requests, fraction): Form) {
    let town = Town::start(&[]);
    let uploaded = town.upload(&town.attacker, "sums", &BundleFolder::summing());
    assert_eq!(uploaded.status, 201, "{}", uploaded.text());
    let ask = |body: &Value| town.send(&town.attacker, "POST", "/v2/models/sums/infer", body.to_string().as_bytes());
    town.endures(requests, fraction, |over| {
        until(over, || {
            (0..160).for_each(|seed| assert_eq!(ask(&sum(seed, 3)).status, 200));
            thread::scope(|scope| {
                for _ in 0..40 {
                    scope.spawn(|| ask(&looping()));
                }
            });
        });
    });
}
