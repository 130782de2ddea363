//! Operations that can be drawn at random, and how each is done to a real registry. Which version or key an operation means is drawn as
//! well, among those that are there, so that the same draw means the same to the registry and to the oracle.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::io::Write as _;

use cellwright_registry::{Digest, Model, ModelName, NewVersion, Registry, RegistryError, Scope, TenantName, VersionFile};

use crate::oracle::{ModelView, View};

/// One of few models, so that operations meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Name(pub(crate) u8);

const NAMES: [&str; 3] = ["digits", "dates", "trees"];

/// Contents that a version can have. The last is larger than what a writer gathers before it writes.
pub(crate) const CONTENTS: u8 = 8;

impl Name {
    pub(crate) fn name(self) -> &'static str {
        NAMES[usize::from(self.0) % NAMES.len()]
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operation {
    Upload { model: Name, content: u8, activate: bool },
    Activate { model: Name, pick: u8 },
    RollBack { model: Name },
    SetLoaded { model: Name, loaded: bool },
    DeleteVersion { model: Name, pick: u8 },
    DeleteModel { model: Name },
    CreateKey { number: u32 },
    RevokeKey { pick: u8 },
    Collect,
}

impl Operation {
    /// An operation for every number, uploads more often than others.
    pub(crate) fn drawn(random: u64, number: u32) -> Self {
        let byte = |place: u32| (random >> (8 * place)) as u8;
        let (model, pick) = (Name(byte(1)), byte(2));
        match byte(0) % 16 {
            0..6 => Self::Upload { model, content: pick % CONTENTS, activate: byte(3) % 2 == 0 },
            6..8 => Self::Activate { model, pick },
            8..10 => Self::RollBack { model },
            10 => Self::SetLoaded { model, loaded: pick % 2 == 0 },
            11..13 => Self::DeleteVersion { model, pick },
            13 if pick % 3 == 0 => Self::DeleteModel { model },
            13 => Self::Collect,
            14 => Self::CreateKey { number },
            _ => Self::RevokeKey { pick },
        }
    }
}

/// Random bits for a place in a sequence (splitmix64).
pub(crate) fn bits(seed: u64, place: u64) -> u64 {
    let mut bits = seed.wrapping_add(place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// One of these version numbers, or one that does not exist.
pub(crate) fn picked(numbers: &[u64], pick: u8) -> u64 {
    numbers.get(usize::from(pick) % (numbers.len() + 1)).copied().unwrap_or(u64::MAX - u64::from(pick))
}

pub(crate) fn label(number: u32) -> String {
    format!("key {number}")
}

/// The files of a content. Contents share a plugin, three by three.
fn files_of(content: u8) -> Vec<(&'static str, Vec<u8>)> {
    let size = if content == CONTENTS - 1 { 400_000 } else { usize::from(content) * 3000 };
    let weights = (0..size).map(|place| bits(u64::from(content), place as u64) as u8).collect();
    vec![
        ("weights.safetensors", weights),
        ("model.toml", format!("name = \"{content}\"").into_bytes()),
        ("plugin.wasm", vec![content / 3; 5000]),
    ]
}

pub(crate) fn digest_of(content: u8) -> Digest {
    let files = files_of(content);
    Digest::of_version(&files.iter().map(|(path, bytes)| (*path, Digest::of(bytes))).collect::<Vec<_>>())
}

/// Does an operation to a registry, and says what it answered in the oracle's words.
pub(crate) fn apply(registry: &Registry, operation: &Operation) -> String {
    let tenant = TenantName::default_tenant();
    let name = |model: &Name| ModelName::parse(model.name()).unwrap();
    let numbers = |model: &Name| {
        let model = registry.model(&tenant, &name(model)).unwrap();
        model.map(|model| model.versions.iter().map(|version| version.number).collect::<Vec<_>>()).unwrap_or_default()
    };
    let told = |model: Result<Model, RegistryError>| answer(model.map(|model| active(&model)));
    match operation {
        Operation::Upload { model, content, activate } => upload(registry, &name(model), *content, *activate),
        Operation::Activate { model, pick } => told(registry.activate(&tenant, &name(model), picked(&numbers(model), *pick))),
        Operation::RollBack { model } => told(registry.roll_back(&tenant, &name(model))),
        Operation::SetLoaded { model, loaded } => told(registry.set_loaded(&tenant, &name(model), *loaded)),
        Operation::DeleteVersion { model, pick } => {
            let deleted = registry.delete_version(&tenant, &name(model), picked(&numbers(model), *pick));
            answer(deleted.map(|_| active(&registry.model(&tenant, &name(model)).unwrap().unwrap())))
        }
        Operation::DeleteModel { model } => answer(registry.delete_model(&tenant, &name(model)).map(|_| "deleted".to_owned())),
        Operation::CreateKey { number } => {
            // An operator's: any may be the first.
            let scopes = [Scope::Admin].into_iter().collect();
            let new = registry.create_key(&TenantName::operator(), scopes, &label(*number)).unwrap();
            assert_eq!(registry.authenticate(&new.secret).map(|identity| identity.key), Some(new.key.id));
            "key".to_owned()
        }
        Operation::RevokeKey { pick } => {
            let keys = registry.keys(None).unwrap();
            let Some(key) = keys.get(usize::from(*pick) % keys.len().max(1)) else { return format!("NotFound {pick}") };
            answer(registry.revoke_key(&key.id).map(|()| format!("revoked {}", key.label)))
        }
        Operation::Collect => answer(registry.collect_garbage().map(|_| "collected".to_owned())),
    }
}

fn answer(answer: Result<String, RegistryError>) -> String {
    answer.unwrap_or_else(|error| format!("{:?}", error.kind()))
}

fn active(model: &Model) -> String {
    format!("active {:?} previous {:?}", model.active, model.previous)
}

fn upload(registry: &Registry, name: &ModelName, content: u8, activate: bool) -> String {
    let file = |(path, bytes): (&str, Vec<u8>)| {
        let mut writer = registry.new_blob().unwrap();
        for piece in bytes.chunks(1500) {
            writer.write_all(piece).unwrap();
        }
        VersionFile { path: path.to_owned(), blob: writer.finish().unwrap() }
    };
    let files = files_of(content).into_iter().map(file).collect();
    let version = NewVersion { files, report: serde_json::json!({ "content": content }), activate };
    let committed = registry.commit_version(&TenantName::default_tenant(), name, version).unwrap();
    format!("version {} existed {}", committed.version.number, committed.existed)
}

/// What can be seen of a registry.
pub(crate) fn view(registry: &Registry) -> View {
    let model = |model: Model| {
        let versions = model.versions.iter().map(|version| (version.number, version.digest)).collect();
        let view = ModelView { versions, active: model.active, previous: model.previous, loaded: model.loaded };
        (model.name.to_string(), view)
    };
    let keys = registry.keys(Some(&TenantName::operator())).unwrap();
    View { models: registry.models(None).unwrap().into_iter().map(model).collect(), keys: keys.into_iter().map(|key| key.label).collect() }
}

/// Whether every version is whole: its report, the list of its files, and every byte of them.
pub(crate) fn assert_whole(registry: &Registry) {
    let mut seen = BTreeSet::new();
    for listed in registry.models(None).unwrap() {
        let model = registry.model(&listed.tenant, &listed.name).unwrap().unwrap();
        for version in &model.versions {
            let content = u8::try_from(version.report["content"].as_u64().unwrap()).unwrap();
            assert_eq!(version.digest, digest_of(content), "{model:?}");
            let files = registry.files(&model.tenant, &model.name, version.number).unwrap();
            let named: Vec<_> = files.iter().map(|file| (file.path.as_str(), file.blob.digest)).collect();
            assert_eq!(Digest::of_version(&named), version.digest, "{named:?}");
            for file in &files {
                if seen.insert(file.blob.digest) {
                    let bytes = fs::read(registry.blob_path(&file.blob.digest)).unwrap();
                    assert_eq!((Digest::of(&bytes), bytes.len() as u64), (file.blob.digest, file.blob.len), "{}", file.path);
                }
            }
        }
    }
}

/// Equal, or both shown.
pub(crate) fn assert_same<T: PartialEq + Debug>(registry: &T, oracle: &T, context: &dyn Debug) {
    assert_eq!(registry, oracle, "left: the registry, right: the oracle, at {context:?}");
}
