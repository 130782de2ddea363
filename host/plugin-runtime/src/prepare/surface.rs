//! What a component or module imports and exports, read without running or compiling it.

use wasmparser::{CompositeInnerType, FuncType, Parser, Payload, TypeRef, Validator};

use super::wasi;
use crate::error::Defect;
use crate::{abi, wasi as stand_ins};

/// Which of the two accepted forms the bytes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Component,
    Module,
}

/// Imports and exports at the top level.
#[derive(Debug)]
pub(super) struct Surface {
    pub(super) kind: Kind,
    /// Whether a module carries a description of its component interface.
    pub(super) describes_itself: bool,
    /// Functions of WASI preview 1 that a module imports.
    pub(super) wasi: Vec<(String, FuncType)>,
    imports: Vec<Import>,
    exports: Vec<String>,
}

#[derive(Debug)]
struct Import {
    /// The module of a module's import; the name of a component's.
    from: String,
    item: Option<String>,
}

impl Import {
    fn sentence(&self) -> String {
        match &self.item {
            Some(item) => format!("\"{item}\" from \"{}\"", self.from),
            None => format!("\"{}\"", self.from),
        }
    }
}

impl Surface {
    pub(super) fn of(bytes: &[u8]) -> Result<Self, Defect> {
        let invalid = |error: wasmparser::BinaryReaderError| Defect::Invalid(error.to_string());
        let kind = match bytes.get(..8) {
            Some([0, b'a', b's', b'm', _, _, 0, 0]) => Kind::Module,
            Some([0, b'a', b's', b'm', _, _, 1, 0]) => Kind::Component,
            _ => return Err(Defect::Invalid("it does not begin as a WebAssembly module or component does".to_owned())),
        };
        Validator::new().validate_all(bytes).map_err(invalid)?;
        let mut surface = Self { kind, describes_itself: false, wasi: Vec::new(), imports: Vec::new(), exports: Vec::new() };
        let mut depth = 0_usize;
        let mut types = Vec::new();
        for payload in Parser::new(0).parse_all(bytes) {
            let payload = payload.map_err(invalid)?;
            match &payload {
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
                Payload::End(_) => depth = depth.saturating_sub(1),
                _ if depth == 0 => surface.read(payload, &mut types).map_err(invalid)?,
                _ => {}
            }
        }
        Ok(surface)
    }

    fn read(&mut self, payload: Payload<'_>, types: &mut Vec<Option<FuncType>>) -> Result<(), wasmparser::BinaryReaderError> {
        match payload {
            Payload::TypeSection(section) => {
                for group in section {
                    types.extend(group?.into_types().map(|ty| match ty.composite_type.inner {
                        CompositeInnerType::Func(function) => Some(function),
                        _ => None,
                    }));
                }
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import?;
                    self.imports.push(Import { from: import.module.to_owned(), item: Some(import.name.to_owned()) });
                    let TypeRef::Func(index) = import.ty else { continue };
                    let function = usize::try_from(index).ok().and_then(|index| types.get(index)?.clone());
                    if let (wasi::MODULE, Some(function)) = (import.module, function) {
                        self.wasi.push((import.name.to_owned(), function));
                    }
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    self.exports.push(export?.name.to_owned());
                }
            }
            Payload::ComponentImportSection(section) => {
                for import in section {
                    self.imports.push(Import { from: import?.name.name.to_owned(), item: None });
                }
            }
            Payload::ComponentExportSection(section) => {
                for export in section {
                    self.exports.push(export?.name.name.to_owned());
                }
            }
            Payload::CustomSection(section) if section.name().starts_with("component-type") => self.describes_itself = true,
            _ => {}
        }
        Ok(())
    }

    /// The interface that makes a plugin must be there, in a version that this host serves.
    pub(super) fn check_version(&self) -> Result<(), Defect> {
        let spoken = |export: &String| {
            let name = export.split('#').next().unwrap_or_default();
            let (interface, version) = abi::interface(name)?;
            (interface == abi::EXPORTED).then(|| version.to_owned())
        };
        let Some(spoken) = self.exports.iter().find_map(spoken) else {
            return Err(Defect::Interface(format!("it exports no {}/{}", abi::PACKAGE, abi::EXPORTED)));
        };
        check_served(&spoken)
    }

    /// Every import must be of the ABI, or of WASI with stand-ins. A component that the host itself
    /// made of a module is `adapted`: it also imports what the adapter needs.
    pub(super) fn check_imports(&self, adapted: bool) -> Result<(), Defect> {
        for import in &self.imports {
            let from = import.from.as_str();
            let is_preview_1 = self.kind == Kind::Module && from == wasi::MODULE;
            match abi::interface(from) {
                Some((interface, version)) if abi::OFFERED.contains(&interface) => check_served(version)?,
                _ if is_preview_1 || stand_ins::interface(from).is_some() || adapted && from == stand_ins::STUBS => {}
                _ => return Err(Defect::ForeignImport(import.sentence())),
            }
        }
        Ok(())
    }
}

fn check_served(version: &str) -> Result<(), Defect> {
    if abi::SERVED_VERSIONS.contains(&version) {
        return Ok(());
    }
    Err(Defect::UnknownVersion { spoken: version.to_owned(), served: abi::SERVED_VERSIONS.join(", ") })
}
