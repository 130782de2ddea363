//! What `check` found, for people and as JSON.

use std::fmt::Write;

use cellwright_bundle::Bundle;
use cellwright_cell_graph::{Attribute, AttributeValue, Tensor, TensorSpec};
use cellwright_command::worker;
use cellwright_engine::RequestMemory;
use cellwright_plugin_runtime::Limits;
use cellwright_serving::samples::{PrecisionReport, SampleReport};
use cellwright_serving::{CellSummary, ServedModel, Serving};
use serde_json::{Map, Value, json};

/// Everything `check` found.
pub(crate) struct Report<'a> {
    pub(crate) bundle: &'a Bundle,
    pub(crate) model: &'a ServedModel,
    pub(crate) serving: &'a Serving,
    pub(crate) samples: Vec<SampleReport>,
    pub(crate) precisions: Vec<PrecisionReport>,
    /// What the plugin noted, as far as that is asked for.
    pub(crate) notes: Vec<String>,
}

impl Report<'_> {
    /// Samples that failed.
    pub(crate) fn failures(&self) -> usize {
        self.samples.iter().filter(|sample| sample.fault.is_some()).count()
    }

    /// The limits in force, by their names in `model.toml`: the server's, lowered where the bundle asks for less. What a server or a tenant says of all calls
    /// together is not known here.
    fn limits(&self) -> Vec<(&'static str, Value)> {
        let (limits, own) = (self.model.limits(), self.bundle.limits());
        let call = Limits::of_server().lowered_to(&own.plugin());
        let of_each = [
            ("cpu_ms", u64::try_from(call.call_time.as_millis()).unwrap_or(u64::MAX)),
            ("memory_mb", call.memory_bytes as u64 >> 20),
            ("nodes_max", limits.graph.nodes_max),
            ("edges_max", limits.graph.edges_max),
            ("chains_max", limits.graph.chains_max as u64),
            ("state_bytes_max", limits.graph.state_bytes_max as u64),
            ("resumes_max", limits.resumes_max.into()),
            ("request_cpu_ms", u64::try_from(limits.plugin_time_max.as_millis()).unwrap_or(u64::MAX)),
            ("answer_mb", limits.answer_bytes_max >> 20),
        ];
        let of_all =
            [("in_flight_max", json!(own.in_flight_max)), ("queued_max", json!(own.queued_max)), ("device_share", json!(own.device_share))];
        // As the model's configuration calls it.
        let rows = self.model.description().rows_are_requests.then(|| ("max_batch_size", json!(limits.rows_max)));
        of_each.map(|(name, limit)| (name, json!(limit))).into_iter().chain(of_all).chain(rows).collect()
    }

    /// Device memory of the samples' requests.
    fn memory(&self) -> RequestMemory {
        self.model.loaded().counters.counts().memory
    }

    pub(crate) fn to_json(&self) -> Value {
        let (description, memory) = (self.model.description(), self.memory());
        let sample = |sample: &SampleReport| json!({ "name": sample.name, "compared": sample.compared, "fault": sample.fault, "distance": sample.distance });
        json!({
            "model": self.model.name(),
            "plugin": self.bundle.plugin_name(),
            "ok": self.failures() == 0,
            "devices": self.serving.engine().devices().map(|device| device.name.as_str()).collect::<Vec<_>>(),
            "inputs": description.inputs.iter().map(spec_json).collect::<Vec<_>>(),
            "outputs": description.outputs.iter().map(spec_json).collect::<Vec<_>>(),
            "cells": self.model.cells().iter().map(cell_json).collect::<Vec<_>>(),
            "limits": self.limits().into_iter().map(|(name, limit)| (name.to_owned(), limit)).collect::<Map<_, _>>(),
            "tolerance": self.bundle.samples().tolerance,
            "memory": { "reserved": memory.reserved, "unshared": memory.unshared, "used": memory.used },
            "notes": self.notes,
            "samples": self.samples.iter().map(sample).collect::<Vec<_>>(),
            "precision": self.bundle.precision().name(),
            "precisions": self.precisions.iter().map(precision_json).collect::<Vec<_>>(),
        })
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = self
            .write_head(&mut text)
            .and_then(|()| self.write_cells(&mut text))
            .and_then(|()| self.notes.iter().try_for_each(|note| writeln!(text, "note     {note}")))
            .and_then(|()| self.write_samples(&mut text))
            .and_then(|()| self.write_precisions(&mut text));
        text
    }

    fn write_head(&self, out: &mut String) -> std::fmt::Result {
        let description = self.model.description();
        writeln!(out, "model    {} (plugin {})", self.model.name(), self.bundle.plugin_name())?;
        let parameters: Vec<String> = self.bundle.parameters().iter().map(parameter_text).collect();
        writeln!(out, "         {}", parameters.join(", "))?;
        let devices = worker::alike(self.serving.engine().devices().map(|device| device.name.clone()));
        for device in devices {
            writeln!(out, "device   {device}")?;
        }
        for (role, specs) in [("input", &description.inputs), ("output", &description.outputs)] {
            for spec in specs {
                writeln!(out, "{role:8} {} {} {:?}", spec.name, spec.datatype, spec.shape)?;
            }
        }
        let unset = |name: &str| match name {
            "in_flight_max" => "the server's",
            "queued_max" => "the tenant's",
            _ => "none",
        };
        let shown =
            |(name, limit): (&str, Value)| if limit.is_null() { format!("{name} {}", unset(name)) } else { format!("{name} {limit}") };
        let limits: Vec<String> = self.limits().into_iter().map(shown).collect();
        writeln!(out, "limits   {}", limits.join(", "))
    }

    fn write_cells(&self, out: &mut String) -> std::fmt::Result {
        let cells = self.model.cells();
        let width = cells.iter().map(|cell| cell.name.len()).max().unwrap_or(0).max("cell".len());
        let columns = ["type", "flops/row", "weight bytes", "calibrated", "batch max", "priority"];
        let [key, flops, bytes, calibrated, batch_max, priority] = columns;
        writeln!(out, "\n{:width$}  {key:12} {flops:>12} {bytes:>12} {calibrated:>10} {batch_max:>9} {priority:>8}", "cell")?;
        for cell in &cells {
            let CellSummary { name, flops, weight_bytes: bytes, calibrated, batch_max, priority, .. } = cell;
            let key = cell.key.to_string();
            writeln!(out, "{name:width$}  {key:12} {flops:>12} {bytes:>12} {calibrated:>10} {batch_max:>9} {priority:>8}")?;
        }
        for cell in cells.iter().filter(|cell| cell.fill_first) {
            writeln!(out, "filled   {}: one worker fills its batch before another worker with the same memory begins one", cell.name)?;
        }
        for cell in &cells {
            if let Some(bytes) = cell.table_bytes {
                writeln!(out, "table    {}: its results by token are kept, in at most {bytes} bytes", cell.name)?;
            }
        }
        writeln!(out)
    }

    fn write_samples(&self, out: &mut String) -> std::fmt::Result {
        let RequestMemory { reserved, unshared, used } = self.memory();
        let without = if unshared > reserved { format!("; {unshared} if stages shared none") } else { String::new() };
        if reserved > 0 {
            writeln!(out, "memory   the samples' requests reserved {reserved} bytes on the device, and computed {used}{without}")?;
        }
        for sample in &self.samples {
            if let Some(fault) = &sample.fault {
                writeln!(out, "FAILED   {}: {fault}", sample.name)?;
            }
        }
        let distances = self.samples.iter().filter_map(|sample| Some((sample, sample.distance?)));
        if let Some((sample, distance)) = distances.clone().max_by(|a, b| a.1.total_cmp(&b.1)).filter(|_| distances.count() > 1) {
            writeln!(out, "worst    {}: its answer is furthest from the expected one, by {distance:.2e}", sample.name)?;
        }
        if let Some(hint) = self.hint() {
            writeln!(out, "hint     {hint}")?;
        }
        let compared = self.samples.iter().filter(|sample| sample.compared).count();
        let (total, passed, tolerance) = (self.samples.len(), self.samples.len() - self.failures(), self.bundle.samples().tolerance);
        let unanswered = self.samples.iter().filter(|sample| sample.error.is_some()).count();
        let ran = total - compared - unanswered;
        let failed = if unanswered == 0 { String::new() } else { format!(", {unanswered} without an answer") };
        writeln!(
            out,
            "samples  {passed} of {total} passed; {compared} compared with expected answers (tolerance {tolerance}), {ran} only run{failed}"
        )
    }

    /// What is usually the matter with answers like these.
    fn hint(&self) -> Option<&'static str> {
        let parameter = |name: &str| self.bundle.parameters().iter().find(|parameter| parameter.name == name).map(|found| &found.value);
        let is_last = parameter("output").is_none_or(|output| *output == AttributeValue::Text("last".to_owned()));
        let two_ways = self.bundle.plugin_name() == "builtin:chain" && parameter("bidirectional") == Some(&AttributeValue::Truth(true));
        if !self.samples.iter().any(|sample| sample.distance.is_some()) {
            return None;
        }
        let expected = self.bundle.samples().all.iter().filter_map(|sample| sample.expected.as_deref()).flatten();
        let logits: Vec<&Tensor> = expected.filter(|output| output.name == "logits").collect();
        if self.bundle.plugin_name().starts_with("builtin:") && !logits.is_empty() && logits.iter().all(|logits| is_normalized(logits)) {
            return Some(
                "the expected `logits` are those of a softmax or log-softmax, which the head of a stock plugin does not apply: expect what \
                 the model gives to it, and let clients apply it",
            );
        }
        (is_last && two_ways).then_some(
            "with two directions `output = \"last\"` joins both final states, as PyTorch's h_n: the backward one is that of the first element. \
             PyTorch's `out[:, -1]` has the backward state of the last element instead, and no `output` gives that",
        )
    }

    fn write_precisions(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "\n{:9}  {:>9}  {:>12}  {:>12}", "precision", "error", "same", "right")?;
        for PrecisionReport { precision, found } in &self.precisions {
            let own = if *precision == self.bundle.precision() { "  (the bundle's)" } else { "" };
            let name = precision.name();
            match found {
                Ok(found) => {
                    let error = found.error.map_or_else(|| "-".to_owned(), |error| format!("{error:.2e}"));
                    let same = if found.answered == 0 { "-".to_owned() } else { format!("{} of {}", found.same, found.answered) };
                    let right = if found.labelled == 0 { "-".to_owned() } else { format!("{} of {}", found.right, found.labelled) };
                    writeln!(out, "{name:9}  {error:>9}  {same:>12}  {right:>12}{own}")?;
                }
                Err(fault) => writeln!(out, "{name:9}  {fault}{own}")?,
            }
        }
        Ok(())
    }
}

/// Whether each row's numbers, or their exponentials, add up to 1.
fn is_normalized(logits: &Tensor) -> bool {
    let (Some(values), Some(&classes)) = (logits.to_f32(), logits.shape.last()) else { return false };
    let is_one = |sum: f32| (sum - 1.0).abs() < 1e-3;
    let rows = |number: fn(f32) -> f32| values.chunks(classes.max(1)).all(|row| is_one(row.iter().map(|value| number(*value)).sum()));
    classes > 1 && (rows(f32::exp) || values.iter().all(|value| *value >= 0.0) && rows(|value| value))
}

/// A parameter in short: lists and long texts are cut.
fn parameter_text(parameter: &Attribute) -> String {
    let value = match &parameter.value {
        AttributeValue::Int(int) => int.to_string(),
        AttributeValue::Float(float) => float.to_string(),
        AttributeValue::Truth(truth) => truth.to_string(),
        AttributeValue::Text(text) if text.chars().count() <= 24 => text.clone(),
        AttributeValue::Text(text) => format!("{} …", text.chars().take(24).collect::<String>()),
        AttributeValue::Ints(list) => format!("[{} integers]", list.len()),
        AttributeValue::Floats(list) => format!("[{} floats]", list.len()),
        AttributeValue::Texts(list) => format!("[{} texts]", list.len()),
    };
    format!("{} = {value}", parameter.name)
}

fn spec_json(spec: &TensorSpec) -> Value {
    json!({ "name": spec.name, "datatype": spec.datatype.name(), "shape": spec.shape })
}

fn precision_json(report: &PrecisionReport) -> Value {
    let name = report.precision.name();
    match &report.found {
        Ok(found) => json!({
            "precision": name,
            // JSON has no infinity.
            "error": found.error.map(|error| error.min(f64::MAX)),
            "answered": found.answered,
            "same": found.same,
            "labelled": found.labelled,
            "right": found.right,
        }),
        Err(fault) => json!({ "precision": name, "fault": fault }),
    }
}

fn cell_json(cell: &CellSummary) -> Value {
    let point = |(rows, time): &(u32, std::time::Duration)| json!({ "rows": rows, "microseconds": time.as_secs_f64() * 1e6 });
    json!({
        "name": cell.name,
        "type": cell.key.to_string(),
        "flops_per_row": cell.flops,
        "weight_bytes": cell.weight_bytes,
        "measured": cell.measured.iter().map(point).collect::<Vec<_>>(),
        "calibrated": cell.calibrated,
        "batch_max": cell.batch_max,
        "measured_lent": cell.measured_lent.iter().map(point).collect::<Vec<_>>(),
        "fill_first": cell.fill_first,
        "priority": cell.priority,
        "table_bytes": cell.table_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_softmax_gives_is_told_from_what_it_is_given() {
        let normalized = |values: [f32; 4]| is_normalized(&Tensor::from_f32("logits", &[2, 2], &values));
        assert!(normalized([0.25, 0.75, 1.0, 0.0]));
        assert!(normalized([0.25, 0.75, 0.5, 0.5].map(f32::ln)));
        assert!(!normalized([0.25, 0.75, 0.5, 0.6]), "one row is not enough");
        assert!(!normalized([1.5, -0.5, 0.5, 0.5]), "no probability is negative");
        assert!(!is_normalized(&Tensor::from_f32("logits", &[1], &[1.0])), "one class is no softmax");
    }
}
