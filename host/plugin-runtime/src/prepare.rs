//! From uploaded bytes to a component that imports only what the host offers.
//!
//! A component is checked. A core module is checked, given the ABI's description where it has none,
//! and encoded as a component, with an adapter in place of WASI preview 1. Runs where compilation
//! runs: in the compiler's process, because the bytes are hostile.

mod surface;
mod wasi;

use wit_component::{ComponentEncoder, StringEncoding};

use crate::abi;
use crate::error::Defect;
use crate::sentence;
use surface::{Kind, Surface};

/// A valid component of this host's ABI, or what is wrong with the bytes.
pub(crate) fn component(bytes: &[u8]) -> Result<Vec<u8>, Defect> {
    let surface = Surface::of(bytes)?;
    surface.check_version()?;
    surface.check_imports(false)?;
    match surface.kind {
        Kind::Component => Ok(bytes.to_vec()),
        Kind::Module => {
            let component = encode(bytes, &surface)?;
            // The module's own description of its interface may have asked for more than its imports show.
            let encoded = Surface::of(&component)?;
            encoded.check_version()?;
            encoded.check_imports(true)?;
            Ok(component)
        }
    }
}

fn encode(bytes: &[u8], surface: &Surface) -> Result<Vec<u8>, Defect> {
    let interface = |error| Defect::Interface(sentence::of_chain(&error));
    let mut module = bytes.to_vec();
    if !surface.describes_itself {
        embed(&mut module, abi::WIT, "plugin")?;
    }
    let mut encoder = ComponentEncoder::default().validate(true).module(&module).map_err(interface)?;
    if !surface.wasi.is_empty() {
        let stubs = wasi::stubs(&surface.wasi)?;
        encoder = encoder.adapter(wasi::MODULE, &stubs).map_err(interface)?;
    }
    encoder.encode().map_err(interface)
}

/// Describes a module's interface by this world.
fn embed(module: &mut Vec<u8>, wit: &str, world: &str) -> Result<(), Defect> {
    let own = |error| Defect::Interface(format!("the host's own description of it cannot be used: {error:#}"));
    let mut resolve = wit_parser::Resolve::default();
    let package = resolve.push_str("plugin.wit", wit).map_err(own)?;
    let world = resolve.select_world(&[package], Some(world)).map_err(own)?;
    wit_component::embed_component_metadata(module, &resolve, world, StringEncoding::UTF8).map_err(own)
}
