//! More requests than a host takes: those beyond are told so at once, those taken are answered.

use cellwright_engine::EngineOptions;
use cellwright_serving::{Delivery, ErrorKind};
use cellwright_tests::host::Host;
use cellwright_tests::requests;

#[test]
fn a_full_host_says_so_and_goes_on() {
    let host = Host::start(EngineOptions { in_flight_max: 16, batch_max: 8, ..EngineOptions::default() });
    let mut refused = 0;
    for round in 0..20 {
        // Long ones, so that they are still there when the last one comes.
        let rows = |seed: usize| 2000 + seed % 7;
        let seeds = round * 100..(round + 1) * 100;
        let sent: Vec<_> =
            seeds.map(|seed| (seed, host.serving().infer(host.summing(), requests::sum(seed, rows(seed)), Delivery::Whole))).collect();
        let mut taken = 0;
        for (seed, outcome) in sent {
            match outcome {
                Ok(reply) => {
                    let response = reply.wait().expect("what was taken is answered");
                    assert_eq!(response.outputs[0].to_f32(), Some(requests::sum_answer(seed, rows(seed))));
                    taken += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                    refused += 1;
                }
            }
        }
        // An answer may arrive a moment before its place is free again.
        assert!(taken >= 8, "round {round}: only {taken} of 100 were taken, though there is room for 16");
    }
    assert!(refused > 0, "2,000 requests were taken, though there is room for 16 at once");
}
