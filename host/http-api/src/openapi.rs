//! The OpenAPI document, and the page that is made of the same table.

mod operations;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use self::operations::{Answer, Body, Operation};
use crate::routes::EMBEDDINGS;

static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());
static PAGE: LazyLock<String> = LazyLock::new(print_page);

const SCHEMAS: &str = include_str!("openapi/schemas.json");

pub(crate) fn document_text() -> &'static str {
    &DOCUMENT
}

pub(crate) fn page() -> &'static str {
    &PAGE
}

fn document() -> Value {
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for operation in operations::all() {
        paths.entry(operation.path).or_default().insert(operation.method.to_owned(), describe(&operation));
    }
    let schemas: Value = serde_json::from_str(SCHEMAS).unwrap_or_default();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Cellwright",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The Open Inference Protocol, version 2, and administration. Every answer carries `x-request-id`; every refusal is one sentence.",
            "license": { "name": "Apache-2.0 OR MIT" }
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer", "description": "A key of the server; a server without keys requires none." } }
        }
    })
}

fn describe(operation: &Operation) -> Value {
    let mut described = json!({
        "tags": [operation.group],
        "summary": operation.summary,
        "operationId": id_of(operation),
        "parameters": parameters(operation),
        "responses": responses(operation),
    });
    if let Some(body) = request_body(operation.body) {
        described["requestBody"] = body;
    }
    if let Some(scope) = operation.scope {
        described["security"] = json!([{ "key": [] }]);
        described["description"] = json!(format!("Needs a key with: {scope}."));
    }
    described
}

fn id_of(operation: &Operation) -> String {
    let words = operation.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    std::iter::once(operation.method).chain(words).collect::<Vec<_>>().join("_")
}

fn parameters(operation: &Operation) -> Vec<Value> {
    let mut parameters = Vec::new();
    for part in operation.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
        let schema = match part {
            "version" => json!({ "type": "string", "pattern": "^[1-9][0-9]{0,17}$" }),
            "key" => json!({ "type": "string", "minLength": 1 }),
            _ => reference("Name"),
        };
        parameters.push(json!({ "name": part, "in": "path", "required": true, "schema": schema }));
    }
    for (name, kind, description) in operation.query {
        parameters.push(json!({ "name": name, "in": "query", "description": description, "schema": { "type": kind } }));
    }
    if operation.scope.is_some() {
        let description = "The tenant whose models are used; only an operator's key may name another one than its own.";
        parameters.push(json!({ "name": "tenant", "in": "query", "description": description, "schema": reference("Name") }));
    }
    if matches!(operation.body, Body::Tensors(_)) {
        let description = "The number of bytes of JSON, if binary tensors follow it. 0: the body is the model's only input.";
        let schema = json!({ "type": "integer", "minimum": 0 });
        parameters.push(json!({ "name": "Inference-Header-Content-Length", "in": "header", "description": description, "schema": schema }));
    }
    parameters
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn request_body(body: Body) -> Option<Value> {
    let in_json = |schema| json!({ "application/json": { "schema": reference(schema) } });
    Some(match body {
        Body::None => return None,
        Body::Json(schema) => json!({ "required": true, "content": in_json(schema) }),
        Body::OptionalJson(schema) => json!({ "required": false, "content": in_json(schema) }),
        Body::Tensors(schema) => {
            let mut content = in_json(schema);
            content["application/octet-stream"] = json!({ "schema": { "type": "string", "format": "binary" } });
            json!({ "required": true, "content": content })
        }
        Body::Archive => json!({
            "required": true,
            "content": { "application/octet-stream": { "schema": { "type": "string", "format": "binary" } } }
        }),
    })
}

fn responses(operation: &Operation) -> Value {
    let mut responses = Map::new();
    let success = |media: &str, schema: Value| json!({ "description": "Done", "content": { media: { "schema": schema } } });
    match operation.answer {
        Answer::Json(status, schema) => drop(responses.insert(status.to_string(), success("application/json", reference(schema)))),
        Answer::JsonOr(status, other, schema) => {
            responses.insert(status.to_string(), success("application/json", reference(schema)));
            responses.insert(other.to_string(), success("application/json", reference(schema)));
        }
        Answer::Tensors(schema) => {
            let mut answer = success("application/json", reference(schema));
            answer["content"]["application/octet-stream"] = json!({ "schema": { "type": "string", "format": "binary" } });
            responses.insert("200".to_owned(), answer);
        }
        Answer::Events(_) => drop(responses.insert("200".to_owned(), success("text/event-stream", json!({ "type": "string" })))),
        Answer::Text(media) => {
            let schema = if media == "application/json" { json!({ "type": "object" }) } else { json!({ "type": "string" }) };
            responses.insert("200".to_owned(), success(media, schema));
        }
        Answer::Empty(status) => drop(responses.insert(status.to_string(), json!({ "description": "Done" }))),
    }
    let error = if operation.path == EMBEDDINGS { "EmbeddingsError" } else { "Error" };
    for status in refusals(operation) {
        let content = json!({ "application/json": { "schema": reference(error) } });
        responses.insert(status.to_string(), json!({ "description": meaning(status), "content": content }));
    }
    Value::Object(responses)
}

/// The statuses of what can go wrong, in order.
fn refusals(operation: &Operation) -> Vec<u16> {
    let mut statuses = operation.refusals.to_vec();
    if operation.scope.is_some() {
        statuses.extend([400, 401, 403, 500]);
    }
    if !matches!(operation.body, Body::None) {
        statuses.extend([400, 408, 413, 415, 429, 503]);
    }
    statuses.sort_unstable();
    statuses.dedup();
    statuses
}

fn meaning(status: u16) -> &'static str {
    match status {
        400 => "The request is not what this path or this model takes",
        401 => "The key is missing or unknown",
        403 => "The key does not allow this",
        404 => "There is no such model, version, tenant or key",
        408 => "The body came too slowly",
        409 => "The present state forbids this",
        413 => "The body or the answer has too many bytes",
        415 => "The encoding of the body is not supported",
        429 => "Too many requests, or bytes of requests, are in flight: try again later",
        500 => "The server failed",
        501 => "This is not supported",
        502 => "The model's plugin failed",
        503 => "The server cannot do it now: try again later",
        504 => "The timeout of the request passed",
        _ => "Refused",
    }
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
code,pre{font:14px/1.4 ui-monospace,monospace}h2{margin-top:2.5rem;border-bottom:1px solid #ddd}\
.o{margin:1rem 0;padding:.6rem .8rem;border:1px solid #ddd;border-radius:6px}.m{display:inline-block;min-width:4.5rem;font-weight:700}\
.s{color:#666;font-size:14px}pre{overflow:auto;background:#f6f6f6;padding:.6rem;border-radius:6px}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}h2,.o{border-color:#444}.s{color:#aaa}pre{background:#222}a{color:#8ab4f8}}";

fn print_page() -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Cellwright API</title><style>{STYLE}</style><h1>Cellwright API</h1><p>Version {}. For programs: \
         <a href=\"/openapi.json\">/openapi.json</a>. Keys are sent as <code>Authorization: Bearer KEY</code>. Every refusal is \
         <code>{{\"error\": \"one sentence\"}}</code>, and every answer carries <code>x-request-id</code>.</p>",
        env!("CARGO_PKG_VERSION")
    );
    let mut group = "";
    let operations = operations::all();
    for operation in operations.iter().filter(|operation| !operation.path.contains("{version}") || operation.path.starts_with("/v1")) {
        if operation.group != group {
            group = operation.group;
            let _ = write!(page, "<h2>{group}</h2>");
            if group == "Inference" {
                page.push_str("<p>Each of these paths may name a version: <code>/v2/models/{model}/versions/{version}/…</code></p>");
            }
        }
        print_operation(&mut page, operation);
    }
    page.push_str("<h2>Messages</h2>");
    let schemas: Map<String, Value> = serde_json::from_str(SCHEMAS).unwrap_or_default();
    for (name, schema) in &schemas {
        let text = serde_json::to_string_pretty(schema).unwrap_or_default();
        let _ = write!(page, "<details id=\"{name}\"><summary><code>{name}</code></summary><pre>{}</pre></details>", escaped(&text));
    }
    page
}

fn print_operation(page: &mut String, operation: &Operation) {
    let link = |schema: &str| format!("<a href=\"#{schema}\">{schema}</a>");
    let takes = match operation.body {
        Body::None => String::new(),
        Body::Json(schema) => format!("takes {}; ", link(schema)),
        Body::OptionalJson(schema) => format!("takes {} or nothing; ", link(schema)),
        Body::Tensors(schema) => format!("takes {}, with binary tensors behind it if there are any; ", link(schema)),
        Body::Archive => "takes an archive; ".to_owned(),
    };
    let answers = match operation.answer {
        Answer::Json(status, schema) => format!("{status}: {}", link(schema)),
        Answer::JsonOr(status, other, schema) => format!("{status} or, if it was there already, {other}: {}", link(schema)),
        Answer::Tensors(schema) => format!("200: {}", link(schema)),
        Answer::Events(schema) => format!("200: events, each {}", link(schema)),
        Answer::Text(media) => format!("200: {media}"),
        Answer::Empty(status) => status.to_string(),
    };
    let query: String = operation.query.iter().map(|(name, _, text)| format!("<br><code>?{name}=</code> {}", escaped(text))).collect();
    let refusals: Vec<String> =
        refusals(operation).iter().map(|status| format!("<span title=\"{}\">{status}</span>", meaning(*status))).collect();
    let key = operation.scope.map_or("no key needed".to_owned(), |scope| format!("key: {}", escaped(scope)));
    let _ = write!(
        page,
        "<div class=\"o\"><span class=\"m\">{}</span><code>{}</code><br>{}<div class=\"s\">{key}; {takes}answers {answers}{query}",
        operation.method.to_uppercase(),
        operation.path,
        escaped(operation.summary)
    );
    if !refusals.is_empty() {
        let _ = write!(page, "<br>refusals: {}", refusals.join(" "));
    }
    page.push_str("</div></div>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every `$ref` of a value.
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn the_document_refers_only_to_what_it_has() {
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 100, "{}", found.len());
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }

    #[test]
    fn only_what_takes_a_body_can_be_too_large() {
        for operation in operations::all() {
            let takes = !matches!(operation.body, Body::None);
            assert_eq!(refusals(&operation).contains(&413), takes, "{} {}", operation.method, operation.path);
        }
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let mut names: Vec<String> = operations::all().iter().map(id_of).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
