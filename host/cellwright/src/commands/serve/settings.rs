//! The settings in force: a flag wins over the environment, the environment over the file, the file over the default.

use std::fmt::{Display, Write};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use cellwright_command::logs::LogFormat;
use cellwright_command::options::ReleaseRule;
use cellwright_command::policy::PolicySpec;
use cellwright_command::process::Usage;
use cellwright_command::worker::WorkerSpec;
use cellwright_engine::EngineOptions;
use cellwright_gate::{Bounds, Limit};
use cellwright_http_api::Limits;
use cellwright_toml_faults as toml_faults;
use clap::ArgMatches;
use clap::parser::ValueSource;
use serde::{Deserialize, Deserializer};

use crate::cli::{IN_FLIGHT_MAX, ListenAddress, ServeArguments};
use crate::telemetry::CollectorUrl;

const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where a setting comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Flag,
    Environment,
    File,
    Default,
}

/// A setting and where it comes from.
#[derive(Clone, Debug)]
pub(crate) struct Setting<T> {
    pub(crate) value: T,
    source: Source,
}

/// Everything that can be set of a server.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) listen: Setting<Vec<ListenAddress>>,
    pub(crate) health: Setting<Option<ListenAddress>>,
    pub(crate) data: Setting<PathBuf>,
    pub(crate) workers: Setting<Vec<WorkerSpec>>,
    pub(crate) policy: Setting<PolicySpec>,
    pub(crate) release: Setting<ReleaseRule>,
    pub(crate) tls_certificate: Setting<Option<PathBuf>>,
    pub(crate) tls_key: Setting<Option<PathBuf>>,
    pub(crate) in_flight_max: Setting<u32>,
    pub(crate) connections_max: Setting<usize>,
    pub(crate) address_connections_max: Setting<usize>,
    pub(crate) body_bytes_max: Setting<usize>,
    pub(crate) upload_bytes_max: Setting<u64>,
    pub(crate) plugin_address_bytes: Setting<Option<u64>>,
    pub(crate) idle_seconds: Setting<u64>,
    pub(crate) header_seconds: Setting<u64>,
    pub(crate) body_seconds: Setting<u64>,
    pub(crate) request_seconds_max: Setting<u64>,
    pub(crate) write_seconds: Setting<u64>,
    pub(crate) drain_delay: Setting<u64>,
    pub(crate) drain_seconds: Setting<u64>,
    pub(crate) log_format: Setting<LogFormat>,
    pub(crate) otlp_endpoint: Setting<Option<CollectorUrl>>,
    pub(crate) record: Setting<Option<PathBuf>>,
}

/// The file, as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    #[serde(deserialize_with = "texts")]
    listen: Option<Vec<ListenAddress>>,
    #[serde(deserialize_with = "text")]
    health: Option<ListenAddress>,
    #[serde(deserialize_with = "path")]
    data: Option<PathBuf>,
    #[serde(deserialize_with = "texts", alias = "worker")]
    workers: Option<Vec<WorkerSpec>>,
    #[serde(deserialize_with = "text")]
    policy: Option<PolicySpec>,
    #[serde(deserialize_with = "text")]
    release: Option<ReleaseRule>,
    #[serde(deserialize_with = "path")]
    tls_certificate: Option<PathBuf>,
    #[serde(deserialize_with = "path")]
    tls_key: Option<PathBuf>,
    in_flight_max: Option<u32>,
    connections_max: Option<usize>,
    address_connections_max: Option<usize>,
    body_bytes_max: Option<usize>,
    upload_bytes_max: Option<u64>,
    plugin_address_bytes: Option<u64>,
    idle_seconds: Option<u64>,
    header_seconds: Option<u64>,
    body_seconds: Option<u64>,
    request_seconds_max: Option<u64>,
    write_seconds: Option<u64>,
    drain_delay: Option<u64>,
    drain_seconds: Option<u64>,
    log_format: Option<LogFormat>,
    otlp_endpoint: Option<CollectorUrl>,
    #[serde(deserialize_with = "path")]
    record: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, or a list of texts")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

fn text<'de, T: std::str::FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    String::deserialize(from)?.parse().map(Some).map_err(serde::de::Error::custom)
}

fn texts<'de, T: std::str::FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<T>>, D::Error> {
    let texts = match OneOrMore::deserialize(from)? {
        OneOrMore::One(text) => vec![text],
        OneOrMore::More(texts) => texts,
    };
    texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect::<Result<_, _>>().map(Some)
}

/// As the flags have it: an empty name would be that of the current folder to some, and of nothing to others.
fn path<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
    let path = PathBuf::deserialize(from)?;
    if path.as_os_str().is_empty() { Err(serde::de::Error::custom("the path is empty")) } else { Ok(Some(path)) }
}

/// Chooses among what was said of a setting.
struct Chooser<'a>(&'a ArgMatches);

impl Chooser<'_> {
    fn choose<T>(&self, id: &str, said: Option<T>, in_file: Option<T>, otherwise: T) -> Setting<T> {
        match (said, in_file) {
            (Some(value), _) => {
                let source = if self.0.value_source(id) == Some(ValueSource::EnvVariable) { Source::Environment } else { Source::Flag };
                Setting { value, source }
            }
            (None, Some(value)) => Setting { value, source: Source::File },
            (None, None) => Setting { value: otherwise, source: Source::Default },
        }
    }
}

impl Settings {
    /// What holds under those arguments; `matches` knows which of them were flags.
    pub(crate) fn new(arguments: &ServeArguments, matches: &ArgMatches) -> anyhow::Result<Self> {
        let file = arguments.config.as_deref().map(read).transpose()?.unwrap_or_default();
        let from = Chooser(matches);
        let said = arguments;
        let (limits, bounds) = (Limits::default(), Bounds::default());
        let connections_max = from.choose("connections_max", said.connections_max, file.connections_max, limits.connections_max);
        let settings = Self {
            listen: from.choose("listen", said.listen.clone(), file.listen, vec![ListenAddress::DEFAULT]),
            health: from.choose("health", said.health.map(Some), file.health.map(Some), None),
            data: match from.choose("data", said.data.clone().map(Some), file.data.map(Some), None) {
                Setting { value: Some(value), source } => Setting { value, source },
                Setting { value: None, source } => Setting { value: data_folder(None)?, source },
            },
            workers: from.choose("workers", said.workers.clone(), file.workers, Vec::new()),
            policy: from.choose("policy", said.policy, file.policy, PolicySpec::default()),
            release: from.choose("release", said.release, file.release, ReleaseRule::Node),
            tls_certificate: from.choose("tls_certificate", said.tls_certificate.clone().map(Some), file.tls_certificate.map(Some), None),
            tls_key: from.choose("tls_key", said.tls_key.clone().map(Some), file.tls_key.map(Some), None),
            in_flight_max: from.choose("in_flight_max", said.in_flight_max, file.in_flight_max, EngineOptions::default().in_flight_max),
            address_connections_max: from.choose(
                "address_connections_max",
                said.address_connections_max,
                file.address_connections_max,
                connections_max.value.div_ceil(2),
            ),
            connections_max,
            body_bytes_max: from.choose("body_bytes_max", said.body_bytes_max, file.body_bytes_max, bounds.body_bytes_max),
            upload_bytes_max: from.choose("upload_bytes_max", said.upload_bytes_max, file.upload_bytes_max, bounds.upload_bytes_max),
            plugin_address_bytes: from.choose(
                "plugin_address_bytes",
                said.plugin_address_bytes.map(Some),
                file.plugin_address_bytes.map(Some),
                None,
            ),
            idle_seconds: from.choose("idle_seconds", said.idle_seconds, file.idle_seconds, limits.idle_timeout.as_secs()),
            header_seconds: from.choose("header_seconds", said.header_seconds, file.header_seconds, limits.header_timeout.as_secs()),
            body_seconds: from.choose("body_seconds", said.body_seconds, file.body_seconds, limits.body_grace.as_secs()),
            request_seconds_max: from.choose(
                "request_seconds_max",
                said.request_seconds_max,
                file.request_seconds_max,
                Limit::RequestSeconds.default(),
            ),
            write_seconds: from.choose("write_seconds", said.write_seconds, file.write_seconds, limits.write_timeout.as_secs()),
            drain_delay: from.choose("drain_delay", said.drain_delay, file.drain_delay, limits.drain_delay.as_secs()),
            drain_seconds: from.choose("drain_seconds", said.drain_seconds, file.drain_seconds, limits.drain.as_secs()),
            log_format: from.choose("log_format", said.log_format, file.log_format, LogFormat::Human),
            otlp_endpoint: from.choose("otlp_endpoint", said.otlp_endpoint.clone().map(Some), file.otlp_endpoint.map(Some), None),
            record: from.choose("record", said.record.clone().map(Some), file.record.map(Some), None),
        };
        if settings.tls_certificate.value.is_some() != settings.tls_key.value.is_some() {
            return Err(Usage("TLS needs both `tls-certificate` and `tls-key`".to_owned()).into());
        }
        Ok(settings)
    }

    /// As a configuration file that says the same, with the sources as comments.
    ///
    /// # Errors
    /// If a path is not UTF-8, which no such file can say.
    pub(crate) fn to_text(&self) -> anyhow::Result<String> {
        let mut text = String::new();
        let data = in_toml(&self.data.value)?;
        let optional = |path: &Option<PathBuf>| path.as_deref().map(in_toml).transpose().map(Option::unwrap_or_default);
        let [certificate, key, record] = [&self.tls_certificate, &self.tls_key, &self.record].map(|setting| optional(&setting.value));
        let (certificate, key, record) = (certificate?, key?, record?);
        let lines = [
            line("listen", &self.listen, |addresses| quoted(addresses)),
            line("health", &self.health, |address| address.map(|address| format!("\"{address}\"")).unwrap_or_default()),
            line("data", &self.data, |_| data),
            line("workers", &self.workers, |workers| quoted(workers)),
            line("policy", &self.policy, |policy| format!("\"{policy}\"")),
            line("release", &self.release, |release| format!("\"{release}\"")),
            line("tls_certificate", &self.tls_certificate, |_| certificate),
            line("tls_key", &self.tls_key, |_| key),
            line("in_flight_max", &self.in_flight_max, ToString::to_string),
            line("connections_max", &self.connections_max, ToString::to_string),
            line("address_connections_max", &self.address_connections_max, ToString::to_string),
            line("body_bytes_max", &self.body_bytes_max, ToString::to_string),
            line("upload_bytes_max", &self.upload_bytes_max, ToString::to_string),
            line("plugin_address_bytes", &self.plugin_address_bytes, |bytes| bytes.map(|bytes| bytes.to_string()).unwrap_or_default()),
            line("idle_seconds", &self.idle_seconds, ToString::to_string),
            line("header_seconds", &self.header_seconds, ToString::to_string),
            line("body_seconds", &self.body_seconds, ToString::to_string),
            line("request_seconds_max", &self.request_seconds_max, ToString::to_string),
            line("write_seconds", &self.write_seconds, ToString::to_string),
            line("drain_delay", &self.drain_delay, ToString::to_string),
            line("drain_seconds", &self.drain_seconds, ToString::to_string),
            line("log_format", &self.log_format, |format| format!("\"{}\"", format!("{format:?}").to_lowercase())),
            line("otlp_endpoint", &self.otlp_endpoint, |url| url.as_ref().map(|url| format!("\"{url}\"")).unwrap_or_default()),
            line("record", &self.record, |_| record),
        ];
        let width = lines.iter().map(|(setting, _)| setting.len()).max().unwrap_or(0);
        for (setting, source) in lines {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{setting:width$}  # {source}");
        }
        Ok(text)
    }
}

fn line<T>(name: &str, setting: &Setting<T>, show: impl FnOnce(&T) -> String) -> (String, &'static str) {
    let shown = show(&setting.value);
    let source = match setting.source {
        Source::Flag => "flag",
        Source::Environment => "environment",
        Source::File => "file",
        Source::Default => "default",
    };
    // A setting that is not made is a comment too.
    (if shown.is_empty() { format!("# {name} =") } else { format!("{name} = {shown}") }, source)
}

fn quoted<T: Display>(values: &[T]) -> String {
    let values: Vec<String> = values.iter().map(|value| format!("\"{value}\"")).collect();
    format!("[{}]", values.join(", "))
}

/// A path as a text of TOML, whose escapes are those of JSON, but that it has one more character which must not stand by itself.
fn in_toml(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8, so a configuration file cannot hold it", path.display()))?;
    Ok(serde_json::to_string(text)?.replace('\u{7f}', "\\u007f"))
}

fn read(path: &Path) -> anyhow::Result<File> {
    let cannot = || format!("the configuration file {} cannot be used", path.display());
    let mut text = String::new();
    // Of devices and pipes nobody knows beforehand how much they have.
    let length = std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)).with_context(cannot)?;
    if length as u64 > FILE_BYTES_MAX {
        bail!("{}: it has more than {FILE_BYTES_MAX} bytes", cannot());
    }
    let file: File = toml_faults::read(&text).map_err(|fault| anyhow!("{}: {fault}", cannot()))?;
    // As the flags have it.
    let bounds = [
        ("in_flight_max", file.in_flight_max.map(u64::from), u64::from(IN_FLIGHT_MAX)),
        ("connections_max", file.connections_max.map(|connections| connections as u64), u64::MAX),
        ("body_bytes_max", file.body_bytes_max.map(|bytes| bytes as u64), u64::MAX),
        ("upload_bytes_max", file.upload_bytes_max, u64::MAX),
        ("plugin_address_bytes", file.plugin_address_bytes, u64::MAX),
        ("idle_seconds", file.idle_seconds, u64::MAX),
        ("header_seconds", file.header_seconds, u64::MAX),
        ("body_seconds", file.body_seconds, u64::MAX),
        ("request_seconds_max", file.request_seconds_max, u64::MAX),
        ("write_seconds", file.write_seconds, u64::MAX),
    ];
    for (key, value, most) in bounds {
        if let Some(value) = value.filter(|value| !(1..=most).contains(value)) {
            let line = toml_faults::line_of_key(&text, &[key]);
            bail!("{}: line {line}: {key}: {value} is not in 1..={most}", cannot());
        }
    }
    Ok(file)
}

/// That folder, or the user's data folder as the XDG base directory specification has it.
pub(crate) fn data_folder(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = absolute("XDG_DATA_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/share")));
    Ok(data.context("there is no home folder for the data: name a folder with `--data`")?.join("cellwright"))
}
