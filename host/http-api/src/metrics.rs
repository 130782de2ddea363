//! What the HTTP layer itself counts, and all figures in Prometheus' text format.
//!
//! Where a figure means what Triton's figure of some name means, it has that name, so that dashboards made for it work.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use cellwright_gate::platform::{CellFigures, Figures, ModelFigures};
use cellwright_registry::TenantName;
use http::StatusCode;

/// Counts of the HTTP layer.
#[derive(Debug, Default)]
pub(crate) struct HttpFigures {
    by_status: [AtomicU64; CLASSES],
    /// Open connections, and those accepted since the start.
    pub(crate) connections: AtomicU64,
    pub(crate) accepted: AtomicU64,
}

const CLASSES: usize = 5;

impl HttpFigures {
    pub(crate) fn answered(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).saturating_sub(1).min(CLASSES - 1);
        self.by_status[class].fetch_add(1, Ordering::Relaxed);
    }
}

/// Everything as text; what concerns the whole server only if it is given.
pub(crate) fn text(figures: &Figures, early: &[(TenantName, &'static str, u64)], server: Option<&HttpFigures>) -> String {
    let mut page = Page::default();
    models(&mut page, &figures.models);
    shed(&mut page, &figures.models, early);
    latencies(&mut page, &figures.models);
    cells(&mut page, &figures.models);
    if let Some(server) = server {
        engine(&mut page, figures);
        http(&mut page, server);
    }
    page.0
}

/// Text in Prometheus' format.
#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &dyn Display)], value: impl Display) {
        self.0.push_str(name);
        for (position, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"{}\"", if position == 0 { '{' } else { ',' }, escaped(&text.to_string()));
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Whose a sample is.
type Label<'a> = (&'static str, &'a dyn Display);

/// A figure of each version.
type OfModel = (&'static str, &'static str, &'static str, fn(&ModelFigures) -> u64);

const OF_MODELS: &[OfModel] = &[
    ("nv_inference_request_success", "counter", "Calls that were answered", |model| model.calls.success.count),
    ("nv_inference_request_failure", "counter", "Calls that were not answered", |model| model.calls.failure.count),
    ("nv_inference_count", "counter", "Requests that were answered; where rows are requests, a call is several", |model| {
        model.calls.requests
    }),
    ("nv_inference_exec_count", "counter", "Batches in which cells of calls ran, alone or with other models' cells", ModelFigures::tasks),
    ("nv_inference_request_duration_us", "counter", "Time of answered calls, microseconds", |model| model.calls.success.ns / 1000),
    ("nv_inference_queue_duration_us", "counter", "Time until the first cell ran, microseconds", |model| model.calls.queue.ns / 1000),
    ("nv_inference_compute_input_duration_us", "counter", "Time of unfolding, microseconds", |model| model.calls.unfold.ns / 1000),
    ("nv_inference_compute_infer_duration_us", "counter", "Time from the first cell to the last, microseconds", |model| {
        model.calls.compute.ns / 1000
    }),
    ("nv_inference_pending_request_count", "gauge", "Calls in flight and calls that wait", |model| {
        u64::from(model.in_flight) + u64::from(model.queued)
    }),
    ("cellwright_in_flight", "gauge", "Calls in flight", |model| u64::from(model.in_flight)),
    ("cellwright_queued", "gauge", "Calls that wait because their model or tenant is at a limit", |model| u64::from(model.queued)),
    ("cellwright_unfold_count", "counter", "Calls that were unfolded", |model| model.calls.unfold.count),
    ("cellwright_plugin_faults", "counter", "Calls that failed because of their plugin: traps, limits, malformed graphs", |model| {
        model.calls.faults
    }),
    ("cellwright_replayed", "counter", "Requests that restarted because their worker was lost", |model| model.calls.replayed),
    ("cellwright_cancelled", "counter", "Calls whose client left", |model| model.calls.cancelled),
    ("cellwright_expired", "counter", "Calls whose timeout passed", |model| model.calls.expired),
    ("cellwright_device_ns", "counter", "Device time of calls' cells, nanoseconds", |model| model.device.device_ns),
];

/// A figure of each cell that has it.
type OfCell = (&'static str, &'static str, &'static str, fn(&CellFigures) -> Option<u64>);

const OF_CELLS: &[OfCell] = &[
    ("cellwright_cell_busy_ns", "counter", "Device time of the batches of a cell's type, nanoseconds", |cell| {
        Some(cell.counters.busy_ns.load(Ordering::Relaxed))
    }),
    ("cellwright_cell_batch_max", "gauge", "A cell's batch limit", |cell| Some(u64::from(cell.batch_max))),
    ("cellwright_cell_table_bytes", "gauge", "Maximum bytes of the tables by token of a cell that has some", |cell| {
        Some(cell.tables.counts()?.bytes)
    }),
    ("cellwright_cell_table_tokens", "gauge", "Tokens of the vocabularies of these tables", |cell| Some(cell.tables.counts()?.tokens)),
    ("cellwright_cell_table_filled", "gauge", "Tokens whose results are in the tables", |cell| Some(cell.tables.counts()?.filled)),
];

fn models(page: &mut Page, models: &[ModelFigures]) {
    for (name, kind, help, value) in OF_MODELS {
        page.family(name, kind, help);
        for model in models {
            page.sample(name, &labels_of(model), value(model));
        }
    }
}

fn shed(page: &mut Page, models: &[ModelFigures], early: &[(TenantName, &'static str, u64)]) {
    const NAME: &str = "cellwright_shed";
    page.family(NAME, "counter", "Calls refused for load, and what was refused for load before it came to a model, by kind");
    for model in models {
        page.sample(NAME, &labels_of(model), model.calls.shed);
    }
    for (tenant, kind, count) in early {
        page.sample(NAME, &[("tenant", tenant), ("kind", kind)], count);
    }
}

fn labels_of(model: &ModelFigures) -> [Label<'_>; 3] {
    [("model", &model.name), ("version", &model.version), ("tenant", &model.tenant)]
}

fn latencies(page: &mut Page, models: &[ModelFigures]) {
    const NAME: &str = "cellwright_request_duration_seconds";
    page.family(NAME, "histogram", "Time of answered calls");
    for model in models {
        let labels = labels_of(model);
        #[expect(clippy::cast_precision_loss, reason = "seconds for people")]
        let seconds = |ns: u64| ns as f64 / 1e9;
        let buckets = model.calls.latencies().map(|(bound, count)| (bound.map(|bound| bound.as_secs_f64()), count));
        histogram(page, NAME, &labels, buckets);
        page.sample(&format!("{NAME}_sum"), &labels, seconds(model.calls.success.ns));
    }
}

/// The buckets, added up as the format asks, and their count.
fn histogram<B: Display>(page: &mut Page, name: &str, labels: &[(&str, &dyn Display)], buckets: impl Iterator<Item = (Option<B>, u64)>) {
    let bucket = format!("{name}_bucket");
    let mut sum = 0_u64;
    for (bound, count) in buckets {
        sum = sum.saturating_add(count);
        if let Some(bound) = bound {
            let labels = [labels, &[("le", &bound as &dyn Display)]].concat();
            page.sample(&bucket, &labels, sum);
        }
    }
    page.sample(&bucket, &[labels, &[("le", &"+Inf" as &dyn Display)]].concat(), sum);
    page.sample(&format!("{name}_count"), labels, sum);
}

fn cells(page: &mut Page, models: &[ModelFigures]) {
    const BATCH: &str = "cellwright_batch_rows";
    page.family(
        BATCH,
        "histogram",
        "Nodes in a batch of a cell's type since it was loaded; models and versions that share the type share its batches",
    );
    for model in models {
        for cell in &model.cells {
            let labels = labels_of_cell(model, cell);
            histogram(page, BATCH, &labels, cell.batches());
            page.sample(&format!("{BATCH}_sum"), &labels, cell.counters.rows.load(Ordering::Relaxed));
        }
    }
    for (name, kind, help, value) in OF_CELLS {
        page.family(name, kind, help);
        for model in models {
            for (cell, value) in model.cells.iter().filter_map(|cell| Some((cell, value(cell)?))) {
                page.sample(name, &labels_of_cell(model, cell), value);
            }
        }
    }
}

fn labels_of_cell<'a>(model: &'a ModelFigures, cell: &'a CellFigures) -> [Label<'a>; 5] {
    let [name, version, tenant] = labels_of(model);
    [name, version, tenant, ("cell", &cell.name), ("type", &cell.key)]
}

fn engine(page: &mut Page, figures: &Figures) {
    page.family("cellwright_waiting", "gauge", "Requests that wait for memory");
    page.sample("cellwright_waiting", &[], figures.engine.waiting);
    page.family("cellwright_slots", "gauge", "Slots of a memory domain");
    for (number, domain) in figures.engine.domains.iter().enumerate() {
        page.sample("cellwright_slots", &[("domain", &number), ("name", &domain.name)], domain.slots);
    }
    page.family("cellwright_slots_used", "gauge", "Slots that requests hold");
    for (number, domain) in figures.engine.domains.iter().enumerate() {
        page.sample("cellwright_slots_used", &[("domain", &number), ("name", &domain.name)], domain.slots_used);
    }
    page.family("cellwright_worker_up", "gauge", "Whether a worker takes tasks");
    for (number, worker) in figures.engine.workers.iter().enumerate() {
        page.sample("cellwright_worker_up", &[("worker", &number)], u8::from(worker.up));
    }
    page.family("cellwright_worker_outstanding", "gauge", "Tasks that a worker has not completed");
    for (number, worker) in figures.engine.workers.iter().enumerate() {
        page.sample("cellwright_worker_outstanding", &[("worker", &number)], worker.outstanding);
    }
}

fn http(page: &mut Page, server: &HttpFigures) {
    page.family("cellwright_http_responses", "counter", "Answers by the first digit of their status");
    for (class, count) in server.by_status.iter().enumerate() {
        page.sample("cellwright_http_responses", &[("class", &format_args!("{}xx", class + 1))], count.load(Ordering::Relaxed));
    }
    page.family("cellwright_http_connections", "gauge", "Open connections");
    page.sample("cellwright_http_connections", &[], server.connections.load(Ordering::Relaxed));
    page.family("cellwright_http_accepted", "counter", "Connections accepted");
    page.sample("cellwright_http_accepted", &[], server.accepted.load(Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_buckets_added_up() {
        let mut page = Page::default();
        let labels: [(&str, &dyn Display); 1] = [("name", &"a\"b\\c\nd")];
        histogram(&mut page, "h", &labels, [(Some(1), 2), (Some(2), 3), (None, 4)].into_iter());
        assert_eq!(
            page.0,
            "h_bucket{name=\"a\\\"b\\\\c\\nd\",le=\"1\"} 2\n\
             h_bucket{name=\"a\\\"b\\\\c\\nd\",le=\"2\"} 5\n\
             h_bucket{name=\"a\\\"b\\\\c\\nd\",le=\"+Inf\"} 9\n\
             h_count{name=\"a\\\"b\\\\c\\nd\"} 9\n"
        );
    }
}
