//! The plugin ABI as the host sees it: the bindings generated from the WIT package, and which versions of it are served.
//!
//! The WIT file is the contract; nothing here adds to it.

use wasmtime::component::{ComponentType, Lift, WasmList};

pub(crate) use bindings::Plugin as Bindings;
pub(crate) use bindings::cellwright::plugin::{host, request, types};

/// The WIT package, for modules that carry no description of their interface themselves.
pub(crate) const WIT: &str = include_str!("../../../guest-sdk/wit/plugin.wit");

/// Every version of the package that this host serves. A published version stays for good.
pub const SERVED_VERSIONS: &[&str] = &["0.1.0"];

/// The package all interfaces of the ABI belong to.
pub(crate) const PACKAGE: &str = "cellwright:plugin";

/// The interface a plugin exports, without its version.
pub(crate) const EXPORTED: &str = "unfolding";

/// The same with the version that the bindings are made for.
pub(crate) const UNFOLDING: &str = "cellwright:plugin/unfolding@0.1.0";

/// The interfaces a plugin may import, without their version.
pub(crate) const OFFERED: &[&str] = &["types", "request", "host"];

/// The interface and the version of a name such as `cellwright:plugin/host@0.1.0`; none for names of other packages.
pub(crate) fn interface(name: &str) -> Option<(&str, &str)> {
    let name = name.strip_prefix(PACKAGE)?.strip_prefix('/')?;
    Some(name.split_once('@').unwrap_or((name, "none")))
}

/// A description whose contents stay in the guest: what a model's second and later instances say is known.
#[derive(ComponentType, Lift)]
#[component(record)]
#[expect(dead_code, reason = "its fields are there to have the type of a description")]
pub(crate) struct UnreadDescription {
    inputs: WasmList<types::TensorSpec>,
    outputs: WasmList<types::TensorSpec>,
    cells: WasmList<types::Cell>,
    #[component(name = "optional-inputs")]
    optional_inputs: WasmList<String>,
    #[component(name = "rows-are-requests")]
    rows_are_requests: bool,
    #[component(name = "live-max")]
    live_max: Option<u32>,
    #[component(name = "ignored-weights")]
    ignored_weights: WasmList<String>,
}

mod bindings {
    wasmtime::component::bindgen!({
        path: "../../guest-sdk/wit",
        world: "plugin",
        imports: { default: trappable },
    });
}
