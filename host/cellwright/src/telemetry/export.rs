//! Sending spans away: a bounded queue, batches, one thread. What does not fit or is not taken is dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{Protocol, RetryPolicy, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};

use super::collector::{Cause, CollectorUrl, Sender};
use super::spans::Spans;

/// How long one request to the collector may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a stopping server waits for its last spans to be taken.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// How many spans were made, and how many of them the collector took.
#[derive(Debug, Default)]
pub(super) struct SpanCounts {
    pub(super) made: AtomicU64,
    taken: AtomicU64,
}

/// Traces on their way to a collector.
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    counts: Arc<SpanCounts>,
}

/// Begins to send spans; gives what makes them too.
pub(super) fn start(collector: &CollectorUrl, scheme: &'static str) -> anyhow::Result<(Traces, Spans)> {
    let cause = Cause::default();
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(Sender::new(SEND_TIMEOUT, cause.clone())?)
        .with_endpoint(collector.for_traces())
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(SEND_TIMEOUT)
        // A delay between retries is drawn from the clock, by code that panics before 1970.
        .with_retry_policy(RetryPolicy::disabled())
        .build()
        .with_context(|| format!("traces cannot be sent to {collector}"))?;
    let counts = Arc::new(SpanCounts::default());
    let exporter = Reported { exporter, collector: collector.clone(), cause, counts: counts.clone(), is_away: AtomicBool::new(false) };
    let provider = SdkTracerProvider::builder().with_resource(resource()).with_batch_exporter(exporter).build();
    let scope = InstrumentationScope::builder("cellwright").with_version(env!("CARGO_PKG_VERSION")).build();
    let spans = Spans::new(provider.tracer_with_scope(scope), scheme, counts.clone());
    Ok((Traces { provider, counts }, spans))
}

/// Who sends: `cellwright`, unless OpenTelemetry's own variables say otherwise.
fn resource() -> Resource {
    let mut resource = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
        resource = resource.with_service_name("cellwright");
    }
    resource.build()
}

impl Traces {
    /// Sends what is left, and says what was lost.
    pub(crate) fn finish(self) {
        // Why something could not be sent was said when it happened.
        let _ = self.provider.shutdown_with_timeout(FLUSH_TIMEOUT);
        let (made, taken) = (self.counts.made.load(Ordering::Acquire), self.counts.taken.load(Ordering::Acquire));
        if taken < made {
            tracing::warn!("{} of {made} spans did not reach the collector", made - taken);
        }
    }
}

/// An exporter that says once when its collector goes away, and once when it is back.
#[derive(Debug)]
struct Reported {
    exporter: opentelemetry_otlp::SpanExporter,
    collector: CollectorUrl,
    cause: Cause,
    counts: Arc<SpanCounts>,
    is_away: AtomicBool,
}

impl SpanExporter for Reported {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len() as u64;
        let result = self.exporter.export(batch).await;
        if result.is_ok() {
            self.counts.taken.fetch_add(spans, Ordering::AcqRel);
            if self.is_away.swap(false, Ordering::AcqRel) {
                tracing::info!("traces reach {} again", self.collector);
            }
        } else if !self.is_away.swap(true, Ordering::AcqRel) {
            tracing::warn!("traces do not reach {}, and are dropped until they do: {}", self.collector, self.cause.text());
        }
        result
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
