//! One request's life: rows that are requests, parts and wholes, what plugins may emit, and clients that go away.
//!
//! Each test has a host of its own, whose worker can be made to stand still, so that it can look at what is left when everybody has gone.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;
mod leaving;
mod limits;
mod lost;
mod policies;
mod rows;
mod sessions;
mod weights;

use std::cell::Cell;
use std::sync::Arc;

use cellwright_bundle::Bundle;
use cellwright_cell_graph::{Attribute, AttributeValue, Tensor};
use cellwright_engine::EngineOptions;
use cellwright_plugin_runtime::{Compiler, RuntimeOptions};
use cellwright_protocol::{InferRequest, InferResponse};
use cellwright_serving::{Delivery, ErrorKind, InferError, ServedModel, Serving, ServingOptions};
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::devices::{Gate, domain, worker};
use cellwright_tests::graphs::settled;
use cellwright_tests::requests;

/// Requests that may be in flight at once.
const IN_FLIGHT: u32 = 64;

/// A host on one worker behind a gate, which opens first when a test fails: otherwise the host would wait for the worker, and the worker for the gate.
struct Host {
    gate: Gate,
    serving: Serving,
}

fn host() -> Host {
    host_of(IN_FLIGHT)
}

thread_local! {
    /// How often this thread was told that what it began takes long.
    static LONG: Cell<usize> = const { Cell::new(0) };
}

/// The same, with so many in flight.
fn host_of(in_flight_max: u32) -> Host {
    host_with(in_flight_max, None)
}

/// The same whose answers may take so many bytes together.
fn host_with(in_flight_max: u32, answers_bytes_max: Option<u64>) -> Host {
    let gate = Gate::default();
    let backend = gate.before(worker(&domain(64)));
    let options = ServingOptions {
        runtime: RuntimeOptions { on_long_call: || LONG.set(LONG.get() + 1), ..RuntimeOptions::new(Compiler::InProcess) },
        engine: EngineOptions { batch_max: 8, in_flight_max, ..EngineOptions::default() },
        plugin_threads: 2,
        answers_bytes_max,
    };
    Host { gate, serving: Serving::start(options, vec![backend]).unwrap() }
}

impl Host {
    /// The summing model, described in that way.
    fn model(&self, describe: &str) -> Arc<ServedModel> {
        if describe == "rows" {
            return self.load(&BundleFolder::summing_rows());
        }
        let folder = BundleFolder::summing();
        folder.parameter("describe", &format!("{describe:?}"));
        self.load(&folder)
    }

    /// The summing model, described honestly, with those limits.
    fn limited(&self, limits: &str) -> Arc<ServedModel> {
        self.load_limited(&BundleFolder::summing(), limits)
    }

    fn load_limited(&self, folder: &BundleFolder, limits: &str) -> Arc<ServedModel> {
        folder.edit("model.toml", "[samples]", &format!("[limits]\n{limits}\n\n[samples]"));
        self.load(folder)
    }

    fn load(&self, folder: &BundleFolder) -> Arc<ServedModel> {
        self.serving.load(&Bundle::open(folder.path()).unwrap(), "tests").unwrap()
    }

    fn infer(&self, model: &Arc<ServedModel>, request: InferRequest) -> Result<InferResponse, InferError> {
        self.serving.infer(model, request, Delivery::Whole)?.wait()
    }

    /// The response's tensors, put together by the host.
    fn whole(&self, model: &Arc<ServedModel>, request: InferRequest) -> Result<Vec<Tensor>, InferError> {
        Ok(self.infer(model, request)?.outputs)
    }

    /// The same, again and again while places of others that have left are not free yet.
    fn at_last(&self, model: &Arc<ServedModel>, request: &InferRequest) -> Result<Vec<Tensor>, InferError> {
        loop {
            match self.whole(model, request.clone()) {
                Err(error) if error.kind() == ErrorKind::Busy => std::thread::yield_now(),
                outcome => return outcome,
            }
        }
    }

    /// Parts as they came, and what the response holds besides.
    fn parts(&self, model: &Arc<ServedModel>, request: InferRequest) -> (Vec<Tensor>, Vec<Tensor>) {
        let reply = self.serving.infer(model, request, Delivery::Parts).unwrap();
        let parts = std::iter::from_fn(|| reply.next_part()).collect();
        (parts, reply.wait().unwrap().outputs)
    }

    /// Nothing of any request is left in the engine, and a request is answered.
    fn is_whole_again(&self) {
        settled(self.serving.engine());
        let sum = self.at_last(&self.model("honest"), &requests::sum(3, 5)).unwrap();
        assert_eq!(sum, [Tensor::from_f32("sum", &[4], &requests::sum_answer(3, 5))]);
        settled(self.serving.engine());
    }
}

fn behaving(behaviour: &str, mut request: InferRequest) -> InferRequest {
    request.parameters.push(Attribute { name: "behave".to_owned(), value: AttributeValue::Text(behaviour.to_owned()) });
    request
}

/// Why there is no answer, and the sentence that the client reads.
fn refused<T>(result: Result<T, InferError>) -> (ErrorKind, String) {
    let error = result.err().unwrap();
    (error.kind(), error.to_string())
}

fn fault(text: &str) -> (ErrorKind, String) {
    (ErrorKind::PluginFault, text.to_owned())
}

fn bad_input(text: &str) -> (ErrorKind, String) {
    (ErrorKind::BadInput, text.to_owned())
}
