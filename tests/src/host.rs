//! A host in this process, as the binary would start one, but that it compiles plugins itself and keeps nothing.

use std::sync::{Arc, OnceLock};

use cellwright_backend::Backend;
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions};
use cellwright_bundle::Bundle;
use cellwright_engine::EngineOptions;
use cellwright_plugin_runtime::{Compiler, RuntimeOptions};
use cellwright_protocol::{InferRequest, InferResponse};
use cellwright_serving::{Delivery, InferError, ServedModel, Serving, ServingOptions};

use crate::bundle_folder::BundleFolder;

/// A host with two workers on one domain.
#[derive(Debug)]
pub struct Host {
    serving: Serving,
    summing: OnceLock<Arc<ServedModel>>,
}

impl Host {
    /// The one that all tests of a program share: whatever one of them does, the others must not notice.
    pub fn shared() -> &'static Self {
        static HOST: OnceLock<Host> = OnceLock::new();
        HOST.get_or_init(|| Self::start(EngineOptions { batch_max: 64, ..EngineOptions::default() }))
    }

    /// Another one.
    #[must_use]
    pub fn start(engine: EngineOptions) -> Self {
        let domain = CpuDomain::new(DomainOptions::default()).expect("memory for an arena");
        let worker = || -> Box<dyn Backend> {
            let options = CpuOptions { threads: 1, ..CpuOptions::default() };
            Box::new(CpuWorker::new(domain.clone(), options).expect("a worker starts"))
        };
        let options =
            ServingOptions { runtime: RuntimeOptions::new(Compiler::InProcess), engine, plugin_threads: 2, answers_bytes_max: None };
        let serving = Serving::start(options, vec![worker(), worker()]).expect("a host starts");
        Self { serving, summing: OnceLock::new() }
    }

    /// What it is made of.
    #[must_use]
    pub const fn serving(&self) -> &Serving {
        &self.serving
    }

    /// Reads, checks and loads a bundle.
    ///
    /// # Errors
    /// The sentence that its owner would read.
    pub fn load(&self, bundle: &BundleFolder) -> Result<Arc<ServedModel>, String> {
        let bundle = Bundle::open(bundle.path()).map_err(|error| error.to_string())?;
        self.serving.load(&bundle, "tests").map_err(|error| error.to_string())
    }

    /// The summing model, loaded once.
    pub fn summing(&self) -> &Arc<ServedModel> {
        self.summing.get_or_init(|| self.load(&BundleFolder::summing()).expect("the honest bundle loads"))
    }

    /// One request's answer.
    ///
    /// # Errors
    /// Why there is none.
    pub fn infer(&self, model: &Arc<ServedModel>, request: InferRequest) -> Result<InferResponse, InferError> {
        self.serving.infer(model, request, Delivery::Whole)?.wait()
    }
}
