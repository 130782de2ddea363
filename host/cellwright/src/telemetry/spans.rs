//! Spans and events of `tracing` as spans of OpenTelemetry's semantic conventions.
//!
//! A span `request` (of `http-api`) becomes a server span. The event `call` within it (of `serving`)
//! becomes a child span whose events are the moments of the call's life, at their own times. Only the
//! fields listed here are exported, so that no contents of a request leave the process.
//!
//! `tracing-opentelemetry` (0.34) does not replace this: it exports every field, and cannot give a span
//! a start in the past.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{Event as SpanEvent, Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context as TraceContext, KeyValue, Value};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracer;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterFn, filter_fn};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::export::SpanCounts;

/// An exchange: a span from its head to its answer's, or to the end of its call if that comes later.
const REQUEST: &str = "request";
/// The event in it that says its status.
const ANSWERED: &str = "answered";
/// The event in it that tells how a call fared.
const CALL: &str = "call";

/// Fields and the attributes that they become.
const ATTRIBUTES: &[(&str, &str)] = &[
    ("batch_max", "cellwright.batch.max"),
    ("batch_mean", "cellwright.batch.mean"),
    ("error_kind", "error.type"),
    ("id", "cellwright.request.id"),
    ("key", "cellwright.key.id"),
    ("method", "http.request.method"),
    ("model", "cellwright.model.name"),
    ("path", "url.path"),
    ("priority", "cellwright.priority"),
    ("requests", "cellwright.requests"),
    ("status", "http.response.status_code"),
    ("tenant", "cellwright.tenant"),
    ("version", "cellwright.model.version"),
];

/// Fields with the microseconds since a call was admitted, and the moments that they are.
const MOMENTS: &[(&str, &str)] =
    &[("unfolded_us", "unfolded"), ("first_cell_us", "first_cell"), ("last_cell_us", "last_cell"), ("replied_us", "replied")];

/// Probes that come every few seconds, and are nobody's requests.
const PROBES: &[&str] = &["/metrics", "/v2/health/live", "/v2/health/ready"];

/// The header that names the span a request was sent from, and the field that has its value.
const PARENT: &str = "traceparent";
/// What the conventions call a method that they do not know.
const OTHER_METHOD: &str = "_OTHER";
/// Segments of the longest path that has a route.
const SEGMENTS_MAX: usize = 6;

/// Lets nothing else of what the process logs come here.
pub(super) fn wanted() -> FilterFn<impl Fn(&Metadata<'_>) -> bool> {
    let wanted = |metadata: &Metadata<'_>| {
        metadata.target().starts_with("cellwright_")
            && matches!(metadata.name(), REQUEST | ANSWERED | CALL)
            && *metadata.level() <= Level::DEBUG
    };
    filter_fn(wanted).with_max_level_hint(Level::DEBUG)
}

/// Makes spans for a collector.
pub(super) struct Spans {
    tracer: SdkTracer,
    parents: TraceContextPropagator,
    scheme: &'static str,
    counts: Arc<SpanCounts>,
}

impl Spans {
    pub(super) fn new(tracer: SdkTracer, scheme: &'static str, counts: Arc<SpanCounts>) -> Self {
        Self { tracer, parents: TraceContextPropagator::new(), scheme, counts }
    }

    fn count(&self, is_recording: bool) {
        if is_recording {
            self.counts.made.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The server span of an exchange that has just begun.
    fn exchange(&self, fields: Fields) -> TraceContext {
        let parent = self.parents.extract_with_context(&TraceContext::new(), &fields);
        let route = fields.text("url.path").and_then(|path| route(&path));
        let method = fields.text("http.request.method").filter(|method| method != OTHER_METHOD).unwrap_or(Cow::Borrowed("HTTP"));
        let name = route.map_or_else(|| method.to_string(), |route| format!("{method} {route}"));
        let route = route.map(|route| KeyValue::new("http.route", route));
        let scheme = KeyValue::new("url.scheme", self.scheme);
        let attributes = fields.attributes.into_iter().chain([scheme]).chain(route);
        let span = self.tracer.span_builder(name).with_kind(SpanKind::Server).with_attributes(attributes);
        parent.with_span(self.tracer.build_with_context(span, &parent))
    }

    /// The span of a call that has just ended.
    fn call(&self, fields: Fields, parent: &TraceContext) {
        let end = SystemTime::now();
        let took = fields.moments.iter().map(|(_, after)| *after).max().unwrap_or_default();
        let start = end.checked_sub(took).unwrap_or(end);
        let has_failed = fields.text("error.type").is_some();
        let moments = [("admitted", Duration::ZERO)].into_iter().chain(fields.moments);
        let events = moments.map(|(name, after)| SpanEvent::new(name, start + after, Vec::new(), 0)).collect();
        let span = self.tracer.span_builder("infer").with_start_time(start).with_events(events).with_attributes(fields.attributes);
        let mut span = self.tracer.build_with_context(span, parent);
        if has_failed {
            // An error's sentence may quote what was sent; it is in the log, under the request's id.
            span.set_status(Status::error(""));
        }
        self.count(span.is_recording());
        span.end_with_timestamp(end);
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if fields.text("url.path").is_some_and(|path| PROBES.contains(&&*path)) {
            return;
        }
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(self.exchange(fields));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let exchange = context.event_span(event).and_then(|span| span.extensions().get::<TraceContext>().cloned());
        let mut fields = Fields::default();
        event.record(&mut fields);
        match (event.metadata().name(), exchange) {
            (CALL, exchange) => self.call(fields, &exchange.unwrap_or_default()),
            (ANSWERED, Some(exchange)) => {
                let exchange = exchange.span();
                if let Some(status) = fields.status.filter(|status| *status >= 500) {
                    exchange.set_attribute(KeyValue::new("error.type", status.to_string()));
                    exchange.set_status(Status::error(""));
                }
                exchange.set_attributes(fields.attributes);
            }
            _ => {}
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(exchange) = context.span(&id).and_then(|span| span.extensions_mut().remove::<TraceContext>()) else { return };
        self.count(exchange.span().is_recording());
        exchange.span().end();
    }
}

/// What a span or an event says of itself, as far as it is exported.
#[derive(Default)]
struct Fields {
    attributes: Vec<KeyValue>,
    moments: Vec<(&'static str, Duration)>,
    status: Option<u64>,
    /// The `traceparent` that came with a request.
    parent: Option<String>,
}

impl Fields {
    fn text(&self, key: &str) -> Option<Cow<'_, str>> {
        self.attributes.iter().find(|attribute| attribute.key.as_str() == key).map(|attribute| attribute.value.as_str())
    }

    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        if let Some((_, key)) = ATTRIBUTES.iter().find(|(name, _)| *name == field.name()) {
            self.attributes.push(KeyValue::new(*key, value));
        }
    }

    fn add_text(&mut self, field: &Field, text: &str) {
        match field.name() {
            PARENT => self.parent = Some(text.to_owned()),
            "method" => self.add(field, known_method(text)),
            _ => self.add(field, text.to_owned()),
        }
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if let Some((_, moment)) = MOMENTS.iter().find(|(name, _)| *name == field.name()) {
            self.moments.push((moment, Duration::from_micros(value)));
            return;
        }
        if field.name() == "status" {
            self.status = Some(value);
        }
        self.add(field, i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add_text(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add_text(field, &format!("{value:?}"));
    }
}

impl Extractor for Fields {
    fn get(&self, key: &str) -> Option<&str> {
        self.parent.as_deref().filter(|_| key == PARENT)
    }

    fn keys(&self) -> Vec<&str> {
        vec![PARENT]
    }
}

/// A method that the conventions know, lest clients make up as many as they like.
fn known_method(method: &str) -> &'static str {
    const KNOWN: &[&str] = &["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    KNOWN.iter().find(|known| **known == method).copied().unwrap_or(OTHER_METHOD)
}

/// The route of a call's path, or of an upload's. Other exchanges go by their method alone: there are few of them.
fn route(path: &str) -> Option<&'static str> {
    let segments: Vec<&str> = path.strip_prefix('/')?.splitn(SEGMENTS_MAX + 1, '/').collect();
    Some(match *segments.as_slice() {
        ["v2", "models", _, "infer"] => "/v2/models/{model}/infer",
        ["v2", "models", _, "generate"] => "/v2/models/{model}/generate",
        ["v2", "models", _, "generate_stream"] => "/v2/models/{model}/generate_stream",
        ["v2", "models", _, "versions", _, "infer"] => "/v2/models/{model}/versions/{version}/infer",
        ["v2", "models", _, "versions", _, "generate"] => "/v2/models/{model}/versions/{version}/generate",
        ["v2", "models", _, "versions", _, "generate_stream"] => "/v2/models/{model}/versions/{version}/generate_stream",
        ["v1", "models", _] => "/v1/models/{model}",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_routes_and_methods_are_few() {
        assert_eq!(route("/v2/models/m/infer"), Some("/v2/models/{model}/infer"));
        assert_eq!(route("/v2/models/m/versions/3/generate"), Some("/v2/models/{model}/versions/{version}/generate"));
        for other in ["", "/", "/v2", "/v2/models/m", "/v2/models/m/infer/", "/v2/models/a/b/c/d/e/f/infer"] {
            assert_eq!(route(other), None, "{other}");
        }
        assert_eq!((known_method("POST"), known_method("post"), known_method("BREW")), ("POST", OTHER_METHOD, OTHER_METHOD));
    }
}
