//! A bundle, read and checked.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::{Attribute, Description, Tensor, WeightSpec, Weights};
use cellwright_plugin_runtime::BundleView;
use cellwright_toml_faults as toml_faults;

use crate::builtin;
use crate::error::{BundleError, WeightsFault};
use crate::folder::Folder;
use crate::manifest::{self, CellSettings, EmbeddingSettings, LimitSettings, Manifest};
use crate::parameters;
use crate::samples::{self, Samples};
use crate::weights::{self, Header};

const PLUGIN_BYTES_MAX: u64 = 64 << 20;
/// Memory that reading samples takes for a byte of JSON: a two-byte element becomes up to nine, and vectors double.
const SAMPLE_BYTES_EACH: u64 = 13;
/// Of a file that a plugin may read when it describes itself.
const PLUGIN_FILE_BYTES_MAX: u64 = 16 << 20;

/// A model bundle: everything of it but what the plugin will say.
#[derive(Clone, Debug)]
pub struct Bundle {
    name: String,
    plugin: PluginBytes,
    parameters: Vec<Attribute>,
    weights: BundleWeights,
    precision: Precision,
    limits: LimitSettings,
    embeddings: Option<EmbeddingSettings>,
    cells: BTreeMap<String, CellSettings>,
    latency_objective_ms: Option<u64>,
    policy: Option<NamedPolicy>,
    samples: Samples,
    folder: Option<Folder>,
}

/// Where the weights are.
#[derive(Clone, Debug)]
enum BundleWeights {
    Memory(Weights),
    File(Arc<WeightsFile>),
}

#[derive(Debug)]
struct WeightsFile {
    folder: Folder,
    file: String,
    header: Header,
    allow_non_finite: Vec<String>,
}

impl WeightsFile {
    fn read(&self, description: &Description) -> Result<Weights, BundleError> {
        let in_file = |fault| BundleError::File { file: self.file.clone(), fault };
        let (file, _) = self.folder.reader(&self.file, weights::BYTES_MAX).map_err(in_file)?;
        let weights = self.header.contents(file, &description.weights_read(), &self.allow_non_finite);
        weights.map_err(|fault| self.at_fault(fault))
    }

    fn check_unread(&self, description: &Description) -> Result<(), BundleError> {
        let unread = self.header.check_unread(&description.weights_read(), &description.ignored_weights);
        unread.map_err(|fault| self.at_fault(fault))
    }

    fn at_fault(&self, fault: WeightsFault) -> BundleError {
        BundleError::Weights { file: self.file.clone(), fault }
    }
}

/// What a plugin sees of its bundle.
struct View {
    folder: Option<Folder>,
    weights: Vec<WeightSpec>,
}

impl BundleView for View {
    /// What cannot be read is not there, as far as a plugin is concerned.
    fn file(&self, path: &str) -> Option<Vec<u8>> {
        self.folder.as_ref()?.read(path, PLUGIN_FILE_BYTES_MAX).ok()
    }

    fn weights(&self) -> &[WeightSpec] {
        &self.weights
    }
}

fn spec(weight: &Tensor) -> WeightSpec {
    let shape = weight.shape.iter().map(|extent| *extent as u64).collect();
    WeightSpec { name: weight.name.clone(), datatype: Some(weight.datatype), shape }
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
        Self::read_all(folder, true)
    }

    /// Reads a bundle whose samples have passed before: it has none then.
    ///
    /// # Errors
    /// As [`Bundle::open`].
    pub fn read_untried(folder: Folder) -> Result<Self, BundleError> {
        Self::read_all(folder, false)
    }

    /// Bytes of memory that [`Bundle::read`] may take: its files, and what they become.
    ///
    /// # Errors
    /// If a file of it is not there, or its `model.toml` does not hold.
    pub fn reading_bytes(folder: &Folder) -> Result<u64, BundleError> {
        let in_file = |file: &str, fault| BundleError::File { file: file.to_owned(), fault };
        let text = folder.read_text(manifest::FILE, manifest::BYTES_MAX).map_err(|fault| in_file(manifest::FILE, fault))?;
        let manifest = Manifest::parse(&text)?;
        let samples = manifest.samples()?;
        let length = |file: &str, bytes_max| folder.reader(file, bytes_max).map(|(_, length)| length).map_err(|fault| in_file(file, fault));
        let of_samples = std::iter::once(&samples.requests).chain(&samples.expected);
        let of_samples = of_samples.map(|file| length(file, samples::BYTES_MAX)).sum::<Result<u64, _>>()?;
        let of_plugin = if manifest.plugin.starts_with(builtin::PREFIX) { 0 } else { length(&manifest.plugin, PLUGIN_BYTES_MAX)? };
        Ok(of_samples.saturating_mul(SAMPLE_BYTES_EACH).saturating_add(of_plugin))
    }

    fn read_all(folder: Folder, with_samples: bool) -> Result<Self, BundleError> {
        let in_file = |file: &str, fault| BundleError::File { file: file.to_owned(), fault };
        let text = folder.read_text(manifest::FILE, manifest::BYTES_MAX).map_err(|fault| in_file(manifest::FILE, fault))?;
        let manifest = Manifest::parse(&text)?;
        let parameters = parameters::flatten(&manifest.parameters)?;
        let plugin = PluginBytes::read(&folder, &manifest.plugin)?;
        let none = Samples { all: Vec::new(), tolerance: 0.0 };
        let samples = if with_samples { Samples::read(&folder, manifest.samples()?, manifest.precision)? } else { none };
        let weights = match &manifest.weights {
            Some(file) => {
                let (reader, length) = folder.reader(file, weights::BYTES_MAX).map_err(|fault| in_file(file, fault))?;
                let header = Header::read(reader, length).map_err(|fault| BundleError::Weights { file: file.clone(), fault })?;
                let (header, allow_non_finite) = (header.without(&manifest.ignore), manifest.allow_non_finite);
                BundleWeights::File(Arc::new(WeightsFile { folder: folder.clone(), file: file.clone(), header, allow_non_finite }))
            }
            None => BundleWeights::Memory(Weights::default()),
        };
        Ok(Self {
            name: manifest.name,
            plugin,
            parameters,
            weights,
            precision: manifest.precision,
            limits: manifest.limits,
            embeddings: manifest.embeddings,
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
            weights: BundleWeights::Memory(weights),
            precision: Precision::default(),
            limits: LimitSettings::default(),
            embeddings: None,
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

    /// Bytes that the weights take which the cells of that description read, known before any of them is read.
    #[must_use]
    pub fn weight_bytes(&self, description: &Description) -> u64 {
        match &self.weights {
            BundleWeights::Memory(weights) => weights.iter().map(|weight| weight.data.len() as u64).sum(),
            BundleWeights::File(file) => file.header.bytes_read(&description.weights_read()),
        }
    }

    /// Reads the weights that the cells of that description read. Others stay unread.
    ///
    /// # Errors
    /// If one of them is not what cells read.
    pub fn weights(&self, description: &Description) -> Result<Weights, BundleError> {
        match &self.weights {
            BundleWeights::Memory(weights) => Ok(weights.clone()),
            BundleWeights::File(file) => file.read(description),
        }
    }

    /// Whether the bundle has no weight that nothing reads. Asked once the cells are known to be sound: what is wrong with one says more.
    ///
    /// # Errors
    /// If it has one that neither the description nor `model.toml` names.
    pub fn check_unread(&self, description: &Description) -> Result<(), BundleError> {
        match &self.weights {
            BundleWeights::Memory(_) => Ok(()),
            BundleWeights::File(file) => file.check_unread(description),
        }
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

    /// By which of its tensors it answers `/v1/embeddings`, if it does.
    #[must_use]
    pub const fn embeddings(&self) -> Option<&EmbeddingSettings> {
        self.embeddings.as_ref()
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

    /// What its plugin may see when it describes itself: files, and which weights there are.
    #[must_use]
    pub fn view(&self) -> Arc<dyn BundleView> {
        let weights = match &self.weights {
            BundleWeights::Memory(weights) => weights.iter().map(|weight| spec(weight)).collect(),
            BundleWeights::File(file) => file.header.specs(),
        };
        Arc::new(View { folder: self.folder.clone(), weights })
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
