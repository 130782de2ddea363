//! A bundle, read and checked.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::{Attribute, Weights};
use cellwright_plugin_runtime::{Files, NoFiles};
use cellwright_toml_faults as toml_faults;

use crate::builtin;
use crate::error::BundleError;
use crate::folder::Folder;
use crate::manifest::{self, CellSettings, LimitSettings, Manifest};
use crate::parameters;
use crate::samples::Samples;
use crate::weights;

const PLUGIN_BYTES_MAX: u64 = 64 << 20;

/// A model bundle: everything of it but what the plugin will say.
#[derive(Clone, Debug)]
pub struct Bundle {
    name: String,
    plugin: PluginBytes,
    parameters: Vec<Attribute>,
    weights: Weights,
    precision: Precision,
    limits: LimitSettings,
    cells: BTreeMap<String, CellSettings>,
    latency_objective_ms: Option<u64>,
    policy: Option<NamedPolicy>,
    samples: Samples,
    folder: Option<Folder>,
}

/// A batching policy by its name. Which there are, a bundle does not know; so who does can say where a wrong one is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPolicy {
    /// As `model.toml` has it.
    pub name: String,
    /// Where that is in `model.toml`, counted from 1.
    pub line: usize,
}

/// A plugin's code: a component, or a core module to make one of.
#[derive(Clone, PartialEq, Eq)]
pub struct PluginBytes {
    name: String,
    bytes: Cow<'static, [u8]>,
}

impl std::fmt::Debug for PluginBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PluginBytes({}, {} bytes)", self.name, self.bytes.len())
    }
}

impl Bundle {
    /// Reads the bundle in that folder.
    ///
    /// # Errors
    /// If anything that can be checked without running the plugin is wrong; the sentence names the file and the cause.
    pub fn open(path: &Path) -> Result<Self, BundleError> {
        Self::read(Folder::open(path)?)
    }

    /// Reads the bundle of those files.
    ///
    /// # Errors
    /// As [`Bundle::open`].
    pub fn read(folder: Folder) -> Result<Self, BundleError> {
        let in_file = |file: &str, fault| BundleError::File { file: file.to_owned(), fault };
        let text = folder.read_text(manifest::FILE, manifest::BYTES_MAX).map_err(|fault| in_file(manifest::FILE, fault))?;
        let manifest = Manifest::parse(&text)?;
        let parameters = parameters::flatten(&manifest.parameters)?;
        let plugin = PluginBytes::read(&folder, &manifest.plugin)?;
        let weights = match &manifest.weights {
            Some(file) => {
                let (reader, length) = folder.reader(file, weights::BYTES_MAX).map_err(|fault| in_file(file, fault))?;
                weights::read(reader, length).map_err(|fault| BundleError::Weights { file: file.clone(), fault })?
            }
            None => Weights::default(),
        };
        let samples = Samples::read(&folder, manifest.samples()?, manifest.precision)?;
        Ok(Self {
            name: manifest.name,
            plugin,
            parameters,
            weights,
            precision: manifest.precision,
            limits: manifest.limits,
            cells: manifest.cells,
            latency_objective_ms: manifest.latency_objective_ms,
            policy: manifest.policy.map(|name| NamedPolicy { name, line: toml_faults::line_of_key(&text, &["policy"]) }),
            samples,
            folder: Some(folder),
        })
    }

    /// A bundle that was never in a folder: default settings, no samples, no files.
    #[must_use]
    pub fn in_memory(name: &str, plugin: PluginBytes, parameters: Vec<Attribute>, weights: Weights) -> Self {
        Self {
            name: name.to_owned(),
            plugin,
            parameters,
            weights,
            precision: Precision::default(),
            limits: LimitSettings::default(),
            cells: BTreeMap::new(),
            latency_objective_ms: None,
            policy: None,
            samples: Samples { all: Vec::new(), tolerance: 0.0 },
            folder: None,
        }
    }

    /// The same bundle computed at another precision; its samples keep their tolerance.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// The model's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its plugin as `model.toml` names it: a file, or `builtin:` and a name.
    #[must_use]
    pub fn plugin_name(&self) -> &str {
        &self.plugin.name
    }

    /// Its plugin: a component, or a core module to make one of.
    #[must_use]
    pub fn plugin_bytes(&self) -> &[u8] {
        &self.plugin.bytes
    }

    /// What `describe` is given, in the order of the dotted names.
    #[must_use]
    pub fn parameters(&self) -> &[Attribute] {
        &self.parameters
    }

    /// Its weights.
    #[must_use]
    pub const fn weights(&self) -> &Weights {
        &self.weights
    }

    /// How its cells are computed.
    #[must_use]
    pub const fn precision(&self) -> Precision {
        self.precision
    }

    /// Limits it sets for itself.
    #[must_use]
    pub const fn limits(&self) -> &LimitSettings {
        &self.limits
    }

    /// What it says of single cells, by their names.
    #[must_use]
    pub const fn cells(&self) -> &BTreeMap<String, CellSettings> {
        &self.cells
    }

    /// The latency it should keep, milliseconds.
    #[must_use]
    pub const fn latency_objective_ms(&self) -> Option<u64> {
        self.latency_objective_ms
    }

    /// The batching policy it asks for.
    #[must_use]
    pub const fn policy(&self) -> Option<&NamedPolicy> {
        self.policy.as_ref()
    }

    /// Its samples.
    #[must_use]
    pub const fn samples(&self) -> &Samples {
        &self.samples
    }

    /// The files its plugin may read when it describes itself.
    #[must_use]
    pub fn files(&self) -> Arc<dyn Files> {
        match &self.folder {
            Some(folder) => Arc::new(folder.clone()),
            None => Arc::new(NoFiles),
        }
    }
}

impl PluginBytes {
    /// The stock plugin of that name (without `builtin:`).
    #[must_use]
    pub fn builtin(name: &str) -> Option<Self> {
        let bytes = builtin::get(name)?;
        Some(Self { name: format!("{}{name}", builtin::PREFIX), bytes: Cow::Borrowed(bytes) })
    }

    fn read(folder: &Folder, name: &str) -> Result<Self, BundleError> {
        if let Some(stock) = name.strip_prefix(builtin::PREFIX).and_then(Self::builtin) {
            return Ok(stock);
        }
        let bytes = folder.read(name, PLUGIN_BYTES_MAX).map_err(|fault| BundleError::File { file: name.to_owned(), fault })?;
        Ok(Self { name: name.to_owned(), bytes: Cow::Owned(bytes) })
    }
}
