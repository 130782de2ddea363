//! What the HTTP layer itself counts, and all figures in Prometheus' text format.
//!
//! Where a figure means what Triton's figure of some name means, it has that name, so that
//! dashboards made for it work.
//!
//! A page is bounded: of each tenant so many versions and cells have series of their own, the newest
//! versions first. The others are summed as `other`. Long names of cells are cut.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cellwright_gate::LARGE;
use cellwright_gate::platform::{CellFigures, Figures, ModelFigures};
use cellwright_registry::TenantName;
use http::StatusCode;

/// Versions on a page that have series of their own. Tenants on it have equal parts of them, and one each at least.
const VERSIONS_SHOWN: usize = 256;
/// For each of those versions so many cells may have some, on average.
const CELLS_SHOWN: usize = 4;
/// What the others are called. Versions count from 1.
const OTHER: &str = "other";
const OTHER_VERSION: u64 = 0;
/// Bytes of a cell's label, and of the part of a longer name that is shown.
const LABEL_MAX: usize = 48;
const LABEL_CUT: usize = 32;

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

/// What a page shows: one tenant's figures, or all; and whether the server's too.
type Scope = (Option<TenantName>, bool);

/// Long pages. Each is good for a second, however often it is asked for.
#[derive(Debug, Default)]
pub(crate) struct Pages(Mutex<HashMap<Scope, (Instant, Bytes)>>);

const GOOD_FOR: Duration = Duration::from_secs(1);

impl Pages {
    pub(crate) fn find(&self, scope: &Scope) -> Option<Bytes> {
        let pages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pages.get(scope).filter(|(until, _)| Instant::now() < *until).map(|(_, page)| page.clone())
    }

    /// Keeps a page if it is long.
    pub(crate) fn keep(&self, scope: Scope, page: &Bytes) {
        if page.len() > LARGE {
            let now = Instant::now();
            let mut pages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            pages.retain(|_, (until, _)| now < *until);
            pages.insert(scope, (now + GOOD_FOR, page.clone()));
        }
    }
}

/// Everything as text; what concerns the whole server only if it is given.
pub(crate) fn text(figures: &Figures, early: &[(TenantName, &'static str, u64)], server: Option<&HttpFigures>) -> String {
    let mut page = Page::default();
    let shown = Shown::of(&figures.models);
    models(&mut page, &shown.models);
    shed(&mut page, &shown.models, early);
    latencies(&mut page, &shown.models);
    cells(&mut page, &shown.cells);
    if let Some(server) = server {
        engine(&mut page, figures);
        http(&mut page, server);
    }
    page.0
}

/// What has series of its own, by tenant, and the sum of what has none.
#[derive(Default)]
struct Shown<'a> {
    models: Vec<Cow<'a, ModelFigures>>,
    cells: Vec<CellSeries<'a>>,
}

/// The series of a cell, or of all that have none of their own.
struct CellSeries<'a> {
    model: &'a str,
    version: u64,
    tenant: &'a TenantName,
    cell: Cow<'a, str>,
    key: &'a str,
    batches: Vec<(Option<u64>, u64)>,
    rows: u64,
    busy_ns: u64,
    /// None: of several.
    one: Option<&'a CellFigures>,
}

impl<'a> Shown<'a> {
    fn of(models: &'a [ModelFigures]) -> Self {
        let mut tenants: BTreeMap<&TenantName, Vec<&ModelFigures>> = BTreeMap::new();
        models.iter().for_each(|model| tenants.entry(&model.tenant).or_default().push(model));
        let versions_max = (VERSIONS_SHOWN / tenants.len().max(1)).max(1);
        let mut shown = Self::default();
        tenants.into_values().for_each(|models| shown.add_tenant(&models, versions_max));
        shown
    }

    /// Adds the versions of a tenant, which come by name and number.
    fn add_tenant(&mut self, models: &[&'a ModelFigures], versions_max: usize) {
        let mut order: Vec<(usize, usize)> = Vec::with_capacity(models.len());
        for (at, model) in models.iter().enumerate().rev() {
            let newer = models.get(at + 1).filter(|next| next.name == model.name).and_then(|_| order.last());
            order.push((newer.map_or(0, |(age, _)| age + 1), at));
        }
        order.sort_unstable();
        let own: BTreeSet<usize> = order.into_iter().take(versions_max).map(|(_, at)| at).collect();
        let (mut rest, mut cells): (Option<ModelFigures>, Vec<(&ModelFigures, usize, &CellFigures)>) = (None, Vec::new());
        for (at, model) in models.iter().enumerate() {
            cells.extend(model.cells.iter().enumerate().map(|(position, cell)| (*model, position, cell)));
            if own.contains(&at) {
                self.models.push(Cow::Borrowed(model));
            } else if let Some(rest) = &mut rest {
                *rest += model;
            } else {
                rest = Some(ModelFigures { name: OTHER.to_owned(), version: OTHER_VERSION, cells: Vec::new(), ..(*model).clone() });
            }
        }
        self.models.extend(rest.map(Cow::Owned));
        // A type is counted once, whichever cells are of it.
        let (mut left, mut types, mut rest) = (CELLS_SHOWN * versions_max, BTreeSet::new(), None::<CellSeries<'_>>);
        for (model, position, cell) in cells {
            if left > 0 {
                left -= 1;
                self.cells.push(CellSeries::new(model, label(&cell.name, position), cell));
            } else if types.insert(&cell.key) {
                let series = CellSeries::new(model, OTHER.into(), cell);
                rest = Some(match rest {
                    None => CellSeries { model: OTHER, version: OTHER_VERSION, key: "", one: None, ..series },
                    Some(sum) => sum.plus(&series),
                });
            }
        }
        self.cells.extend(rest);
    }
}

impl<'a> CellSeries<'a> {
    fn new(model: &'a ModelFigures, label: Cow<'a, str>, cell: &'a CellFigures) -> Self {
        Self {
            model: &model.name,
            version: model.version,
            tenant: &model.tenant,
            cell: label,
            key: &cell.key,
            batches: cell.batches().collect(),
            rows: cell.counters.rows.load(Ordering::Relaxed),
            busy_ns: cell.counters.busy_ns.load(Ordering::Relaxed),
            one: Some(cell),
        }
    }

    fn plus(mut self, other: &Self) -> Self {
        self.batches.iter_mut().zip(&other.batches).for_each(|((_, count), (_, more))| *count += more);
        Self { rows: self.rows + other.rows, busy_ns: self.busy_ns + other.busy_ns, ..self }
    }

    fn labels(&self) -> [Label<'_>; 5] {
        [("model", &self.model), ("version", &self.version), ("tenant", &self.tenant), ("cell", &self.cell), ("type", &self.key)]
    }
}

/// A cell's name; of a long one the beginning and its position, which no other cell of the model has.
fn label(name: &str, position: usize) -> Cow<'_, str> {
    if name.len() <= LABEL_MAX && !name.contains('~') {
        return name.into();
    }
    let cut = name.floor_char_boundary(LABEL_CUT.min(name.len()));
    format!("{}~{position}", &name[..cut]).into()
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
    (
        "cellwright_request_bytes_reserved",
        "counter",
        "Bytes of devices' memory that requests reserved, of those that did not grow",
        |model| model.device.memory.reserved,
    ),
    ("cellwright_request_bytes_unshared", "counter", "What these would have been if stages had shared none", |model| {
        model.device.memory.unshared
    }),
    ("cellwright_request_bytes_used", "counter", "Bytes of what these requests computed", |model| model.device.memory.used),
    ("cellwright_device_ns", "counter", "Device time of calls' cells, nanoseconds", |model| model.device.device_ns),
];

/// A figure of each cell that has it.
type OfCell = (&'static str, &'static str, &'static str, fn(&CellSeries<'_>) -> Option<u64>);

const OF_CELLS: &[OfCell] = &[
    ("cellwright_cell_busy_ns", "counter", "Device time of the batches of a cell's type, nanoseconds", |cell| Some(cell.busy_ns)),
    ("cellwright_cell_batch_max", "gauge", "A cell's batch limit", |cell| Some(u64::from(cell.one?.batch_max))),
    ("cellwright_cell_table_bytes", "gauge", "Maximum bytes of the tables by token of a cell that has some", |cell| {
        Some(cell.one?.tables.counts()?.bytes)
    }),
    ("cellwright_cell_table_tokens", "gauge", "Tokens of the vocabularies of these tables", |cell| Some(cell.one?.tables.counts()?.tokens)),
    ("cellwright_cell_table_filled", "gauge", "Tokens whose results are in the tables", |cell| Some(cell.one?.tables.counts()?.filled)),
];

fn models(page: &mut Page, models: &[Cow<'_, ModelFigures>]) {
    for (name, kind, help, value) in OF_MODELS {
        page.family(name, kind, help);
        for model in models {
            page.sample(name, &labels_of(model), value(model));
        }
    }
}

fn shed(page: &mut Page, models: &[Cow<'_, ModelFigures>], early: &[(TenantName, &'static str, u64)]) {
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

fn latencies(page: &mut Page, models: &[Cow<'_, ModelFigures>]) {
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

fn cells(page: &mut Page, cells: &[CellSeries<'_>]) {
    const BATCH: &str = "cellwright_batch_rows";
    page.family(
        BATCH,
        "histogram",
        "Nodes in a batch of a cell's type since it was loaded; models and versions that share the type share its batches",
    );
    for cell in cells {
        histogram(page, BATCH, &cell.labels(), cell.batches.iter().copied());
        page.sample(&format!("{BATCH}_sum"), &cell.labels(), cell.rows);
    }
    for (name, kind, help, value) in OF_CELLS {
        page.family(name, kind, help);
        for (cell, value) in cells.iter().filter_map(|cell| Some((cell, value(cell)?))) {
            page.sample(name, &cell.labels(), value);
        }
    }
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
    use std::sync::Arc;

    use cellwright_gate::figures::CallFiguresView;

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

    fn version(name: &str, version: u64, cells: &[&str]) -> ModelFigures {
        let cell = |name: &&str| CellFigures {
            name: (*name).to_owned(),
            key: (*name).to_owned(),
            batch_max: 1,
            counters: Arc::default(),
            tables: Default::default(),
        };
        let calls = CallFiguresView { requests: 1, ..CallFiguresView::default() };
        ModelFigures {
            tenant: TenantName::default_tenant(),
            name: name.to_owned(),
            version,
            in_flight: 0,
            queued: 0,
            calls,
            device: Default::default(),
            cells: cells.iter().map(cell).collect(),
        }
    }

    #[test]
    fn the_newest_versions_of_a_tenant_have_series_of_their_own_and_the_rest_is_summed() {
        let models: Vec<_> = (1..=2).flat_map(|model| (1..=3).map(move |number| version(&format!("m{model}"), number, &[]))).collect();
        let mut shown = Shown::default();
        shown.add_tenant(&models.iter().collect::<Vec<_>>(), 3);
        let said: Vec<_> = shown.models.iter().map(|model| (model.name.as_str(), model.version, model.calls.requests)).collect();
        assert_eq!(said, [("m1", 2, 1), ("m1", 3, 1), ("m2", 3, 1), (OTHER, OTHER_VERSION, 3)]);
    }

    #[test]
    fn a_page_has_some_megabytes_at_most() {
        let name = |number: usize| format!("{number:0128}");
        let cells: Vec<_> = (0..CELLS_SHOWN + 1).map(|number| format!("{number:048}")).collect();
        let cells: Vec<_> = cells.iter().map(String::as_str).collect();
        let tenant = |number: usize| TenantName::parse(&name(number)).unwrap();
        let of_tenant = |number: usize| (0..VERSIONS_SHOWN).map(move |model| (number, model));
        let models: Vec<_> = (0..8)
            .flat_map(of_tenant)
            .map(|(number, model)| ModelFigures { tenant: tenant(number), ..version(&name(model), 1, &cells) })
            .collect();
        let mut page = Page::default();
        let shown = Shown::of(&models);
        super::models(&mut page, &shown.models);
        latencies(&mut page, &shown.models);
        super::cells(&mut page, &shown.cells);
        assert!((4 << 20..16 << 20).contains(&page.0.len()), "{}", page.0.len());
    }

    #[test]
    fn cells_have_short_labels_and_a_type_is_counted_once() {
        let long = "\"".repeat(LABEL_MAX + 1);
        let models = [version("m", 1, &["a", "b", &long, "c~9", "d", "e"]), version("n", 1, &["e"])];
        let mut shown = Shown::default();
        shown.add_tenant(&models.iter().collect::<Vec<_>>(), 1);
        let labels: Vec<_> = shown.cells.iter().map(|series| &*series.cell).collect();
        assert_eq!(labels, ["a", "b", &format!("{}~2", "\"".repeat(LABEL_CUT)), "c~9~3", OTHER]);
        assert!(shown.cells[4].one.is_none() && shown.cells[4].model == OTHER);
    }
}
