//! A plugin that does, on request, everything a plugin must not do.
//!
//! It is written against the bare ABI, because the SDK makes most of this hard to say. The request parameter `behave` names what `unfold` does,
//! the model parameter `describe` what `describe` does; without them the plugin is honest: its answer `sum` is the column-wise sum of the
//! rows of `x`, plus `bias` once a row. Tests therefore know what every honest request that runs beside a hostile one must answer.
//! `behave = "session"` is the same as an honest session, and `stream-all`, `stream-last`, `resume-every` and
//! `resume-overtakes` are honest in parts.

mod description;
mod faults;
mod graphs;
mod resumes;
mod sessions;

wit_bindgen::generate!({ path: "../../../guest-sdk/wit", world: "plugin" });

use cellwright::plugin::request;
use cellwright::plugin::types::{Description, Event, Growth, Parameter, Reaction, Refusal, Value};
use exports::cellwright::plugin::unfolding::Guest;

struct Hostile;

impl Guest for Hostile {
    fn describe(parameters: Vec<Parameter>) -> Result<Description, Refusal> {
        let behaviour = text(&parameters, "describe").unwrap_or("honest");
        faults::commit(behaviour);
        description::of(behaviour)
    }

    fn unfold() -> Result<Growth, Refusal> {
        let parameters = request::parameters();
        let behaviour = text(&parameters, "behave").unwrap_or("honest");
        faults::commit(behaviour);
        faults::misread(behaviour);
        if let Some(refusal) = faults::refusal(behaviour) {
            return Err(refusal);
        }
        if behaviour == "picky" && faults::unbearable() {
            return Err(Refusal::InvalidInput("I cannot bear this row".into()));
        }
        let rows = request::tensors().first().and_then(|x| x.shape.first().copied()).unwrap_or(0);
        if rows == 0 {
            return Err(Refusal::InvalidInput("input `x` must have at least one row, it has none".into()));
        }
        let rows = u32::try_from(rows).map_err(|_| Refusal::InvalidInput("input `x` has more than 2^32 rows".into()))?;
        let growth = sessions::first(behaviour, rows).or_else(|| resumes::first(behaviour, rows));
        let growth = growth.or_else(|| graphs::of(behaviour, rows));
        growth.ok_or_else(|| Refusal::Unsupported(format!("there is no behaviour `{behaviour}`")))
    }

    fn resume(state: Vec<u8>, event: Event) -> Result<Reaction, Refusal> {
        sessions::next(&state, &event).unwrap_or_else(|| resumes::next(&state, &event))
    }
}

export!(Hostile);

/// The text parameter of that name.
fn text<'a>(parameters: &'a [Parameter], name: &str) -> Option<&'a str> {
    parameters.iter().find(|parameter| parameter.name == name).and_then(|parameter| match &parameter.value {
        Value::Text(text) => Some(text.as_str()),
        _ => None,
    })
}
