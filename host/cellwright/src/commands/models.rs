//! `models`: what a server has, and which version of it serves.

use std::io::{Write, stdout};
use std::process::ExitCode;

use cellwright_client::Client;
use cellwright_command::table::table;
use cellwright_protocol::messages::admin::Model;
use cellwright_protocol::messages::metadata::{ModelMetadata, TensorMetadata};
use serde_json::json;

use super::remote::block_on;
use crate::cli::{ModelsAction, ModelsArguments};

pub(crate) fn models(arguments: &ModelsArguments) -> anyhow::Result<ExitCode> {
    let client = arguments.server.client()?;
    let text = block_on(act(&client, arguments.action.as_ref().unwrap_or(&ModelsAction::List), arguments.json))?;
    stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

async fn act(client: &Client, action: &ModelsAction, json: bool) -> anyhow::Result<String> {
    let said = |value: serde_json::Value, text: String| if json { format!("{value}\n") } else { text };
    Ok(match action {
        ModelsAction::List => {
            let models = client.models().await?;
            said(json!(models), list(&models))
        }
        ModelsAction::Show { model } => {
            let known = client.model(model).await?;
            // What it takes only a model that serves can say.
            let taken = client.model_metadata(model.as_str()).await.ok();
            let mut shown = json!(known);
            if let Some(taken) = &taken {
                (shown["inputs"], shown["outputs"]) = (json!(taken.inputs), json!(taken.outputs));
            }
            said(shown, versions(&known) + &taken.map(|taken| interface(&taken)).unwrap_or_default())
        }
        ModelsAction::Activate { model, version } => {
            let activated = client.activate(model, *version).await?;
            said(json!(activated), format!("{model} version {} serves now\n", activated.active))
        }
        ModelsAction::Rollback { model } => {
            let activated = client.roll_back(model).await?;
            said(json!(activated), format!("{model} version {} serves now\n", activated.active))
        }
        ModelsAction::Load { model } => {
            client.load(model).await?;
            said(json!({ "model": model, "loaded": true }), format!("{model} is in service\n"))
        }
        ModelsAction::Unload { model } => {
            client.unload(model).await?;
            said(json!({ "model": model, "loaded": false }), format!("{model} is out of service\n"))
        }
        ModelsAction::Delete { model, version: Some(version) } => {
            client.delete_version(model, *version).await?;
            said(json!({ "model": model, "deleted": version }), format!("{model} version {version} is deleted\n"))
        }
        ModelsAction::Delete { model, version: None } => {
            client.delete_model(model).await?;
            said(json!({ "model": model, "deleted": true }), format!("{model} is deleted\n"))
        }
    })
}

fn list(models: &[Model]) -> String {
    if models.is_empty() {
        return "there are no models; upload one with `cellwright push FOLDER`\n".to_owned();
    }
    let row = |model: &Model| {
        let active = model.active.map(|version| version.to_string()).unwrap_or_default();
        let state = match (model.active, model.loaded, &model.unavailable) {
            (None, _, _) => "no version is active".to_owned(),
            (Some(_), false, _) => "unloaded".to_owned(),
            (Some(_), true, None) => "serves".to_owned(),
            (Some(_), true, Some(why)) => format!("does not serve: {why}"),
        };
        vec![model.tenant.clone(), model.name.clone(), active, model.versions.len().to_string(), state]
    };
    table(&["tenant", "model", "active", "versions", "state"], &models.iter().map(row).collect::<Vec<_>>())
}

fn versions(model: &Model) -> String {
    let row = |version: &cellwright_protocol::messages::admin::Version| {
        let mark = if model.active == Some(version.version) { "active" } else { "" };
        vec![version.version.to_string(), version.bytes.to_string(), version.digest.clone(), mark.to_owned()]
    };
    table(&["version", "bytes", "digest", ""], &model.versions.iter().map(row).collect::<Vec<_>>())
}

/// What a request brings and an answer carries.
fn interface(taken: &ModelMetadata) -> String {
    let rows = |what: &str, tensors: &[TensorMetadata]| -> Vec<Vec<String>> {
        let extent = |extent: &i64| if *extent < 0 { "any".to_owned() } else { extent.to_string() };
        let shape = |shape: &[i64]| shape.iter().map(extent).collect::<Vec<_>>().join(", ");
        let row = |tensor: &TensorMetadata| {
            vec![what.to_owned(), tensor.name.clone(), tensor.datatype.clone(), format!("[{}]", shape(&tensor.shape))]
        };
        tensors.iter().map(row).collect()
    };
    let rows = [rows("input", &taken.inputs), rows("output", &taken.outputs)].concat();
    format!("\n{}", table(&["", "name", "datatype", "shape"], &rows))
}
