//! How much a tenant's lines may fill of the log.
//!
//! What a tenant does may end in lines of the log: its changes, its plugins' faults, and with more of the log every call. So each
//! tenant's lines have a rate, and those that belong to no tenant have one for each place in the code. Lines beyond it are left out
//! and counted, and a thread that lives while there are such says how many.

use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Bytes that each may write at once, and then each second.
const BURST_BYTES: f64 = 1_048_576.0;
const BYTES_A_SECOND: f64 = 65_536.0;
/// How often it is said what was left out.
const PAUSE: Duration = Duration::from_secs(10);
/// Tenants that have a rate of their own. A server without keys takes any name for one.
const TENANTS_MAX: usize = 10_000;

/// Whose a line is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Source {
    Tenant(String),
    Place(Identifier),
}

#[derive(Debug)]
struct Bucket {
    bytes: f64,
    filled: Instant,
    left_out: u64,
}

/// The rates of all sources of lines.
#[derive(Debug, Default)]
pub(super) struct Volume(Mutex<Sources>);

#[derive(Debug, Default)]
struct Sources {
    buckets: HashMap<Source, Bucket>,
    /// Whether a thread is about to say what was left out.
    is_told: bool,
}

impl Volume {
    /// Whether a line of so many bytes may be written.
    fn take(self: &Arc<Self>, event: &Event<'_>, bytes: usize) -> bool {
        let place = Source::Place(event.metadata().callsite());
        let mut tenant = Tenant(None);
        event.record(&mut tenant);
        let (now, mut sources) = (Instant::now(), self.lock());
        let has_room = |source: &Source| sources.buckets.len() < TENANTS_MAX || sources.buckets.contains_key(source);
        let source = tenant.0.map(Source::Tenant).filter(has_room).unwrap_or(place);
        let bucket = sources.buckets.entry(source).or_insert(Bucket { bytes: BURST_BYTES, filled: now, left_out: 0 });
        let passed = now.saturating_duration_since(bucket.filled).as_secs_f64();
        bucket.bytes = (bucket.bytes + passed * BYTES_A_SECOND).min(BURST_BYTES);
        bucket.filled = now;
        let line = bytes as f64;
        if bucket.bytes >= line {
            bucket.bytes -= line;
            return true;
        }
        bucket.left_out += 1;
        if !sources.is_told {
            let volume = self.clone();
            sources.is_told = std::thread::Builder::new().name("log".to_owned()).spawn(move || while volume.tell_after(PAUSE) {}).is_ok();
        }
        false
    }

    /// Says what was left out meanwhile; whether there was anything.
    fn tell_after(&self, pause: Duration) -> bool {
        std::thread::sleep(pause);
        let mut sources = self.lock();
        let counted = |(source, bucket): (&Source, &mut Bucket)| (source.clone(), std::mem::take(&mut bucket.left_out));
        let left_out: Vec<_> = sources.buckets.iter_mut().map(counted).filter(|(_, lines)| *lines > 0).collect();
        sources.is_told = !left_out.is_empty();
        drop(sources);
        for (source, lines) in &left_out {
            let of = match source {
                Source::Tenant(name) => format!("tenant `{name}`"),
                Source::Place(place) => format!("{}:{}", place.0.metadata().target(), place.0.metadata().line().unwrap_or_default()),
            };
            tracing::warn!(lines, "lines of {of} were left out of the log: they came faster than {BYTES_A_SECOND} bytes a second");
        }
        !left_out.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Sources> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The field of an event that says whose it is.
struct Tenant(Option<String>);

impl Visit for Tenant {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "tenant" {
            self.0 = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "tenant" {
            self.0 = Some(format!("{value:?}"));
        }
    }
}

/// Lines in a format, as far as there is room for them.
pub(super) struct Bounded<F> {
    pub(super) format: F,
    pub(super) volume: Arc<Volume>,
}

impl<S, N, F> FormatEvent<S, N> for Bounded<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = String::new();
        self.format.format_event(context, Writer::new(&mut line), event)?;
        if self.volume.take(event, line.len()) { writer.write_str(&line) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// A log that is kept.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no thread panicked with it").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_tenant_that_is_loud_fills_no_more_than_its_part_and_hides_nobody() {
        let (log, volume) = (Log::default(), Arc::<Volume>::default());
        // No thread tells of it here.
        volume.lock().is_told = true;
        let (writer, of) = (log.clone(), volume.clone());
        let lines = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
        let lines = lines.map_event_format(|format| Bounded { format, volume: of });
        let text = "x".repeat(1000);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            for number in 0..10_000 {
                tracing::info!(tenant = "loud", number, "{text}");
                tracing::info!(tenant = %"louder", number, "{text}");
                tracing::info!(number, "{text}");
            }
            tracing::info!(tenant = "quiet", "the line of the quiet one");
            tracing::info!("another place");
            assert!(volume.tell_after(Duration::ZERO) && !volume.tell_after(Duration::ZERO));
        });
        let written = String::from_utf8(log.0.lock().expect("no thread panicked with it").clone()).expect("a log is text");
        assert!((3_000_000..5_000_000).contains(&written.len()), "{} bytes", written.len());
        for line in [
            "the line of the quiet one",
            "another place",
            "lines of tenant `loud` were left out",
            "lines of tenant `louder` were",
            "volume::tests:",
        ] {
            assert!(written.contains(line), "{line}");
        }
    }
}
