//! Turns core modules with embedded component types into components: `encode MODULE.wasm COMPONENT.wasm`. A build tool of the stock plugins;
//! it runs on the host and is part of no plugin.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [module, component] = &arguments[..] else { return Err("usage: encode MODULE.wasm COMPONENT.wasm".into()) };
    let encoded = wit_component::ComponentEncoder::default().validate(true).module(&std::fs::read(module)?)?.encode()?;
    std::fs::write(component, encoded)?;
    Ok(())
}
