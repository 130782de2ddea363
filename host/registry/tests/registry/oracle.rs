//! What a registry should do, said as plainly as possible: lists in memory.

use std::collections::BTreeMap;

use cellwright_registry::Digest;

use crate::operations::{Operation, digest_of, label, picked};

/// What can be seen of a registry from outside, times left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) models: BTreeMap<String, ModelView>,
    /// Labels, oldest key first.
    pub(crate) keys: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelView {
    /// Number and digest, oldest first.
    pub(crate) versions: Vec<(u64, Digest)>,
    pub(crate) active: Option<u64>,
    pub(crate) previous: Option<u64>,
    pub(crate) loaded: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Oracle {
    models: BTreeMap<String, OracleModel>,
    /// The last number given under each name, ever.
    numbers: BTreeMap<String, u64>,
    keys: Vec<String>,
}

#[derive(Clone, Debug)]
struct OracleModel {
    versions: Vec<(u64, Digest)>,
    active: Option<u64>,
    earlier: Vec<u64>,
    loaded: bool,
}

impl OracleModel {
    fn previous(&self) -> Option<u64> {
        self.earlier.iter().rev().copied().find(|number| Some(*number) != self.active)
    }

    fn activate(&mut self, number: u64) {
        if let Some(active) = self.active.filter(|active| *active != number) {
            self.earlier.push(active);
            let surplus = self.earlier.len().saturating_sub(32);
            self.earlier.drain(..surplus);
        }
        self.serves(number);
    }

    /// What is put in service is meant to be loaded, whatever was said before.
    fn serves(&mut self, number: u64) {
        (self.active, self.loaded) = (Some(number), true);
    }

    fn numbers(&self) -> Vec<u64> {
        self.versions.iter().map(|(number, _)| *number).collect()
    }
}

impl Oracle {
    pub(crate) fn view(&self) -> View {
        let view = |model: &OracleModel| ModelView {
            versions: model.versions.clone(),
            active: model.active,
            previous: model.previous(),
            loaded: model.loaded,
        };
        View { models: self.models.iter().map(|(name, model)| (name.clone(), view(model))).collect(), keys: self.keys.clone() }
    }

    /// Does the operation, and says what a registry should have answered.
    pub(crate) fn apply(&mut self, operation: &Operation) -> String {
        match operation {
            Operation::Upload { model, content, activate } => self.upload(model.name(), *content, *activate),
            Operation::CreateKey { number } => {
                self.keys.push(label(*number));
                "key".to_owned()
            }
            Operation::RevokeKey { pick } if self.keys.is_empty() => format!("NotFound {pick}"),
            Operation::RevokeKey { pick } => {
                let revoked = self.keys.remove(usize::from(*pick) % self.keys.len());
                format!("revoked {revoked}")
            }
            Operation::Collect => "collected".to_owned(),
            Operation::DeleteModel { model } => match self.models.remove(model.name()) {
                Some(_) => "deleted".to_owned(),
                None => "NotFound".to_owned(),
            },
            Operation::Activate { model, .. }
            | Operation::RollBack { model }
            | Operation::SetLoaded { model, .. }
            | Operation::DeleteVersion { model, .. } => match self.models.get_mut(model.name()) {
                Some(model) => change(model, operation),
                None => "NotFound".to_owned(),
            },
        }
    }

    fn upload(&mut self, name: &str, content: u8, activate: bool) -> String {
        let digest = digest_of(content);
        let new = || OracleModel { versions: Vec::new(), active: None, earlier: Vec::new(), loaded: true };
        let model = self.models.entry(name.to_owned()).or_insert_with(new);
        let found = model.versions.iter().find(|(_, found)| *found == digest).map(|(number, _)| *number);
        let number = found.unwrap_or_else(|| {
            let last = self.numbers.entry(name.to_owned()).or_default();
            *last += 1;
            model.versions.push((*last, digest));
            *last
        });
        if activate {
            model.activate(number);
        }
        format!("version {number} existed {}", found.is_some())
    }
}

fn change(model: &mut OracleModel, operation: &Operation) -> String {
    match operation {
        Operation::Activate { pick, .. } => {
            let number = picked(&model.numbers(), *pick);
            if !model.numbers().contains(&number) {
                return "NotFound".to_owned();
            }
            model.activate(number);
        }
        Operation::RollBack { .. } => {
            let Some(previous) = model.previous() else { return "Conflict".to_owned() };
            let place = model.earlier.iter().rposition(|number| *number == previous).unwrap();
            model.earlier.truncate(place);
            model.serves(previous);
        }
        Operation::SetLoaded { loaded, .. } => model.loaded = *loaded,
        Operation::DeleteVersion { pick, .. } => {
            let number = picked(&model.numbers(), *pick);
            if !model.numbers().contains(&number) {
                return "NotFound".to_owned();
            }
            if model.active == Some(number) {
                return "Conflict".to_owned();
            }
            model.versions.retain(|(found, _)| *found != number);
            model.earlier.retain(|found| *found != number);
        }
        _ => unreachable!("not a change of one model"),
    }
    format!("active {:?} previous {:?}", model.active, model.previous())
}
