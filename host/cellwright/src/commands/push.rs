//! `push`: a bundle to a server.

use std::io::{Write, stdout};
use std::process::ExitCode;

use cellwright_client::PushOptions;
use cellwright_command::host;
use cellwright_command::progress;
use cellwright_protocol::messages::admin::SampleResult;

use super::remote;
use crate::cli::PushArguments;

pub(crate) fn push(arguments: &PushArguments) -> anyhow::Result<ExitCode> {
    // What is wrong with the bundle is better heard before it has been sent.
    let bundle = host::open(&arguments.bundle)?;
    let name = arguments.name.clone().unwrap_or_else(|| bundle.name().to_owned());
    drop(bundle);
    let client = arguments.server.client()?;
    let bar = progress::bytes("sent");
    let shown = bar.clone();
    let report = move |far: cellwright_client::Progress| {
        shown.set_length(far.total);
        shown.set_position(far.sent);
        if far.sent == far.total {
            shown.set_message("sent; the server is checking it");
        }
    };
    let options = PushOptions { activate: !arguments.no_activate };
    let uploaded = remote::block_on(async { Ok(client.push(&name, &arguments.bundle, options, report).await) })?;
    bar.finish_and_clear();
    let uploaded = uploaded.map_err(|error| {
        let outcome = if error.is_undecided() {
            format!("it is unknown whether model `{name}` has a new version: see `cellwright models show {name}`")
        } else {
            format!("model `{name}` has no new version")
        };
        anyhow::Error::new(error).context(outcome)
    })?;
    let mut out = stdout();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string(&uploaded)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let state = match (uploaded.existed, uploaded.activated) {
        (false, true) => "serves now",
        (false, false) => "is stored; activate it to make it serve",
        (true, true) => "was stored before; it serves now",
        (true, false) => "was stored before",
    };
    writeln!(out, "{} version {} {state}", uploaded.model, uploaded.version)?;
    writeln!(out, "digest {}", uploaded.digest)?;
    if !uploaded.existed {
        writeln!(out, "{}", samples(&uploaded.samples))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn samples(samples: &[SampleResult]) -> String {
    let passed = samples.len();
    // Older servers do not say which they compared.
    let Some(compared) = samples.iter().map(|sample| sample.compared.map(usize::from)).sum::<Option<usize>>() else {
        return format!("{passed} samples passed");
    };
    format!("{passed} samples passed; {compared} compared with expected answers, {} only run", passed - compared)
}
