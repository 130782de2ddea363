//! Answers that people can check by eye.

use std::io::{Write, stdout};

use anyhow::Context;
use cellwright_bundle::Sample;
use cellwright_cell_graph::Tensor;
use cellwright_client::{Client, Form};
use serde_json::{Map, Value};

use super::{Checks, Shown, say};

/// Digits side by side.
const DIGITS: usize = 6;
const DATES: usize = 8;
const EXPRESSIONS: usize = 5;
/// From white to black.
const SHADES: [&str; 5] = ["  ", "░░", "▒▒", "▓▓", "██"];

/// Shows some answers of each model, and checks all.
pub(super) async fn all(client: &Client, models: &[Shown], checks: &mut Checks) -> anyhow::Result<()> {
    for model in models {
        match model.name {
            "digits" => digits(client, model, checks).await?,
            "dates" => dates(client, model, checks).await?,
            _ => expressions(client, model, checks).await?,
        }
    }
    Ok(())
}

fn output<'a>(outputs: &'a [Tensor], name: &str) -> anyhow::Result<&'a Tensor> {
    outputs.iter().find(|tensor| tensor.name == name).with_context(|| format!("there is no output `{name}`"))
}

fn expected<'a>(sample: &'a Sample, name: &str) -> anyhow::Result<&'a Tensor> {
    output(sample.expected.as_deref().unwrap_or_default(), name)
}

fn label(outputs: &[Tensor]) -> anyhow::Result<i64> {
    output(outputs, "label")?.to_i64().and_then(|labels| labels.first().copied()).context("the output `label` is not one integer")
}

fn input_text(sample: &Sample) -> String {
    let texts = sample.request.inputs.first().and_then(Tensor::texts).unwrap_or_default();
    texts.first().map(|text| String::from_utf8_lossy(text).into_owned()).unwrap_or_default()
}

async fn digits(client: &Client, model: &Shown, checks: &mut Checks) -> anyhow::Result<()> {
    say("\ndigits: handwritten digits, read row by row by an LSTM")?;
    let mut pictures = Vec::new();
    for (number, sample) in model.samples.iter().enumerate() {
        // Both forms of the protocol's tensors.
        let form = if number % 2 == 0 { Form::Json } else { Form::Binary };
        let answer = client.infer(model.name, sample.request.clone(), form).await?;
        let (found, wanted) = (label(&answer.outputs)?, label(sample.expected.as_deref().unwrap_or_default())?);
        let mark = checks.note(found == wanted);
        if number < DIGITS {
            let pixels = sample.request.inputs.first().and_then(Tensor::to_f32).unwrap_or_default();
            pictures.push((pixels, format!("is a {found} {mark}")));
        }
    }
    for row in 0..8 {
        let line: Vec<String> = pictures.iter().map(|(pixels, _)| picture_row(pixels, row)).collect();
        say(&format!("  {}", line.join("    ")))?;
    }
    let captions: Vec<String> = pictures.iter().map(|(_, caption)| format!("{caption:16}")).collect();
    say(&format!("  {}", captions.join("    ").trim_end()))
}

fn picture_row(pixels: &[f32], row: usize) -> String {
    let shade = |pixel: &f32| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 4")]
        let shade = (pixel.clamp(0.0, 1.0) * 4.0).round() as usize;
        SHADES[shade.min(4)]
    };
    pixels.iter().skip(row * 8).take(8).map(shade).collect()
}

async fn dates(client: &Client, model: &Shown, checks: &mut Checks) -> anyhow::Result<()> {
    say("\ndates: dates as people write them, in ISO 8601; streamed while they are generated (generate_stream)")?;
    for (number, sample) in model.samples.iter().enumerate() {
        let text = input_text(sample);
        let wanted = expected(sample, "text")?.texts().and_then(|texts| texts.first().map(|text| text.to_vec())).unwrap_or_default();
        let shown = number < DATES;
        if shown {
            write!(stdout(), "  {text:34} → ")?;
        }
        let request: Map<String, Value> = [("text".to_owned(), Value::String(text))].into_iter().collect();
        let mut events = client.generate_stream(model.name, &request).await?;
        let mut written = String::new();
        while let Some(event) = events.next().await {
            let part = event?;
            let part = part.get("text").map(piece).unwrap_or_default();
            written.push_str(&part);
            if shown {
                write!(stdout(), "{part}")?;
                stdout().flush()?;
            }
        }
        let mark = checks.note(written.as_bytes() == wanted);
        if shown {
            say(&format!(" {mark}"))?;
        }
    }
    Ok(())
}

/// A text, whether it stands alone or in a list of one.
fn piece(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(piece).collect(),
        _ => String::new(),
    }
}

async fn expressions(client: &Client, model: &Shown, checks: &mut Checks) -> anyhow::Result<()> {
    say("\nlistops: nested expressions, each its own tree for a TreeLSTM (MED: median, SM: sum modulo 10)")?;
    for (number, sample) in model.samples.iter().enumerate() {
        let answer = client.infer(model.name, sample.request.clone(), Form::Json).await?;
        let (found, wanted) = (label(&answer.outputs)?, label(sample.expected.as_deref().unwrap_or_default())?);
        let mark = checks.note(found == wanted);
        if number < EXPRESSIONS {
            say(&format!("  {} = {found} {mark}", input_text(sample)))?;
        }
    }
    Ok(())
}
