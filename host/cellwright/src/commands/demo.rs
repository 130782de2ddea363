//! `demo`: a server on this machine, three models uploaded to it, real requests and their answers, and some load.

mod load;
mod show;

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use cellwright_bundle::Sample;
use cellwright_client::{Client, PushOptions};
use cellwright_command::host;
use cellwright_command::progress;
use serde_json::{Value, json};

use super::remote::block_on;
use crate::cli::DemoArguments;
use crate::local_server::LocalServer;

/// The models shown, by the names of their folders.
const MODELS: [&str; 3] = ["digits", "dates", "listops"];

/// A model of the demonstration.
struct Shown {
    name: &'static str,
    folder: PathBuf,
    samples: Vec<Sample>,
}

/// Checks that held and that did not.
#[derive(Debug, Default)]
struct Checks {
    held: u64,
    failed: u64,
}

impl Checks {
    /// Notes a check, and gives its mark.
    fn note(&mut self, holds: bool) -> &'static str {
        if holds {
            self.held += 1;
            "✓"
        } else {
            self.failed += 1;
            "✗"
        }
    }
}

pub(crate) fn demo(arguments: &DemoArguments) -> anyhow::Result<ExitCode> {
    let models = open(&examples(arguments.examples.as_deref())?)?;
    let data = tempfile::tempdir().context("cannot create a temporary folder for the server's data")?;
    let starting = progress::spinner("starting a server".to_owned());
    let server = LocalServer::start((data.path(), data.path()), &arguments.options("cellular"))?;
    starting.finish_and_clear();
    say(&format!("A server listens on {}, with its data in a temporary folder.", server.url()))?;
    let client = server.client()?;
    let mut checks = Checks::default();
    block_on(upload(&client, &models, &mut checks))?;
    block_on(show::all(&client, &models, &mut checks))?;
    let tables = load::compare(&server, &models, arguments)?;
    if arguments.once {
        drop(server);
        return finish(arguments, &checks, &tables);
    }
    say(&invitation(server.url()))?;
    if arguments.json {
        say(&summary(&checks, &tables).to_string())?;
    }
    server.wait()?;
    Ok(ExitCode::SUCCESS)
}

fn finish(arguments: &DemoArguments, checks: &Checks, tables: &Value) -> anyhow::Result<ExitCode> {
    say(&format!("\n{} checks passed, {} failed.", checks.held, checks.failed))?;
    if arguments.json {
        say(&summary(checks, tables).to_string())?;
    }
    Ok(if checks.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn summary(checks: &Checks, load: &Value) -> Value {
    json!({ "ok": checks.failed == 0, "held": checks.held, "failed": checks.failed, "load": load })
}

fn say(text: &str) -> anyhow::Result<()> {
    Ok(writeln!(stdout(), "{text}")?)
}

/// The folder of the examples: the one given, or the nearest one above the current folder.
fn examples(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let here = std::env::current_dir().context("cannot find the current folder")?;
    let found = here.ancestors().map(|folder| folder.join("examples")).find(|folder| folder.join(MODELS[0]).join("model.toml").is_file());
    found.context("the folder `examples` of this project is neither here nor above: name it with `--examples`")
}

fn open(examples: &Path) -> anyhow::Result<Vec<Shown>> {
    let open = |name: &'static str| {
        let folder = examples.join(name);
        let bundle = host::open(&folder)?;
        let samples = bundle.samples().all.clone();
        if samples.iter().any(|sample| sample.expected.is_none()) {
            bail!("the bundle {} has no expected answers for its samples", folder.display());
        }
        Ok(Shown { name, folder, samples })
    };
    MODELS.into_iter().map(open).collect()
}

/// Sends the bundles through the public API, as anybody would.
async fn upload(client: &Client, models: &[Shown], checks: &mut Checks) -> anyhow::Result<()> {
    say("\nUploading three models (PUT /v1/models/…); each must answer its samples as expected before it serves:")?;
    for model in models {
        let bar = progress::spinner(format!("uploading {}", model.name));
        let uploaded = client.push(model.name, &model.folder, PushOptions::default(), |_| {}).await;
        bar.finish_and_clear();
        let uploaded = uploaded.with_context(|| format!("the server did not accept the model `{}`", model.name))?;
        let mark = checks.note(uploaded.activated && uploaded.samples.iter().all(|sample| sample.ok));
        say(&format!("  {mark} {:8} version {}, {} samples passed", uploaded.model, uploaded.version, uploaded.samples.len()))?;
    }
    Ok(())
}

fn invitation(url: &str) -> String {
    format!(
        "\nThe server runs until Ctrl-C. Try it:

  curl {url}/v2/models/digits
  curl -d '{{\"text\": \"the 3rd of March 2024\"}}' {url}/v2/models/dates/generate
  curl -N -d '{{\"text\": \"3 mars 2024\"}}' {url}/v2/models/dates/generate_stream
  head -1 examples/digits/samples.jsonl | curl -d @- {url}/v2/models/digits/infer
  curl {url}/metrics

Documentation: {url}/docs"
    )
}
