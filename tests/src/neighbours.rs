//! Honest requests that are in flight while something bad happens. All of them must get their right answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cellwright_serving::{Delivery, ServedModel};

use crate::host::Host;
use crate::requests;
use crate::server::{self, Server};

/// Requests in flight at once.
const WAVE: usize = 32;

/// Runs `bad` while waves of honest requests of the summing model `model` are in flight, and checks every answer.
///
/// # Panics
/// If an honest request fails or is answered wrongly.
pub fn beside<T>(host: &Host, model: &Arc<ServedModel>, bad: impl FnOnce() -> T) -> T {
    let (started, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let honest = scope.spawn(|| {
            let mut waves = 0;
            while !over.load(Ordering::Acquire) || waves == 0 {
                wave(host, model, waves, &started);
                waves += 1;
            }
        });
        while !started.load(Ordering::Acquire) && !honest.is_finished() {
            std::thread::yield_now();
        }
        let result = {
            let _over = SetOnDrop(&over);
            bad()
        };
        honest.join().expect("honest requests get their right answers");
        result
    })
}

/// Runs `bad` while clients of a server send honest requests of its summing model `model`, and checks every answer.
///
/// # Panics
/// If an honest request fails or is answered wrongly.
pub fn beside_clients<T>(server: &Server, model: &str, bad: impl FnOnce() -> T) -> T {
    /// Connections, each with one request at a time.
    const CLIENTS: usize = 3;
    let (answered, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let client = |number: usize| {
        let mut sent = 0;
        while !over.load(Ordering::Acquire) || sent == 0 {
            let (seed, rows) = (number + sent * CLIENTS, 1 + (number + sent * 37) % 211);
            let answer = server.infer(model, &server::sum(seed, rows));
            assert!(server::is_sum(&answer, seed, rows), "honest request {seed}: {} {}", answer.status, answer.text());
            answered.fetch_add(1, Ordering::AcqRel);
            sent += 1;
        }
    };
    std::thread::scope(|scope| {
        let client = &client;
        let honest: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || client(number))).collect();
        while answered.load(Ordering::Acquire) == 0 && !honest.iter().any(|client| client.is_finished()) {
            std::thread::yield_now();
        }
        let before = answered.load(Ordering::Acquire);
        let result = {
            let _over = SetOnDrop(&over);
            let result = bad();
            // Whoever is served only before and after is not served beside.
            while answered.load(Ordering::Acquire) < before + CLIENTS && !honest.iter().any(|client| client.is_finished()) {
                std::thread::yield_now();
            }
            result
        };
        for client in honest {
            client.join().expect("honest requests get their right answers");
        }
        result
    })
}

/// Sends one wave, and checks its answers.
fn wave(host: &Host, model: &Arc<ServedModel>, number: usize, started: &AtomicBool) {
    let rows = |seed: usize| 1 + (seed * 37) % 211;
    let seeds = number * WAVE..(number + 1) * WAVE;
    let replies: Vec<_> = seeds
        .map(|seed| {
            let reply = host.serving().infer(model, requests::sum(seed, rows(seed)), Delivery::Whole);
            (seed, reply.unwrap_or_else(|error| panic!("honest request {seed} is taken: {error}")))
        })
        .collect();
    started.store(true, Ordering::Release);
    for (seed, reply) in replies {
        let response = reply.wait().unwrap_or_else(|error| panic!("honest request {seed} is answered: {error}"));
        assert_eq!(response.outputs[0].to_f32().as_deref(), Some(&requests::sum_answer(seed, rows(seed))[..]), "honest request {seed}");
    }
}

/// Lets those who watch it end even if the test panics.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
