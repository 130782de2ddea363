//! What a plugin author implements, and how the exported functions reach it.
//!
//! The host describes every fresh instance once before anything else, so what a plugin derives from its parameters lives in the plugin's own
//! struct. A request's state never does: any instance may serve any call, so it goes into a continuation's `state`.

use std::cell::RefCell;
use std::thread::LocalKey;

use crate::abi::cellwright::plugin::types::{Description, Event, Growth, Parameter, Reaction, Refusal};
use crate::bundle::Bundle;
use crate::parameters::Parameters;
use crate::request::{Incoming, Request};

/// A model plugin.
pub trait Plugin: Sized + 'static {
    /// Says what the model takes, gives and consists of, and keeps in `Self` what unfolding needs.
    ///
    /// # Errors
    /// A refusal, where the parameters or the bundle are not what the plugin needs.
    fn describe(parameters: &Parameters, bundle: &Bundle) -> Result<(Self, Description), Refusal>;

    /// Turns a request into its cell graph.
    ///
    /// # Errors
    /// A refusal that says who is at fault, in one sentence for the client.
    fn unfold(&self, request: &Request<'_>) -> Result<Growth, Refusal>;

    /// Goes on after a continuation: with the outputs it watched, or a session's next input.
    ///
    /// # Errors
    /// As [`Plugin::unfold`]; unless it is overridden, always.
    fn resume(&self, state: &[u8], event: &Event, request: &Request<'_>) -> Result<Reaction, Refusal> {
        let _ = (state, event, request);
        Err(Refusal::Internal("this plugin asks for no continuation, so there is nothing to resume".into()))
    }
}

/// Where an instance keeps its plugin.
pub type Holder<P> = LocalKey<RefCell<Option<P>>>;

/// Describes `P` and keeps it: the exported `describe`.
///
/// # Errors
/// The plugin's refusal, or one that names a parameter the plugin never asked for.
pub fn describe<P: Plugin>(holder: &'static Holder<P>, parameters: Vec<Parameter>) -> Result<Description, Refusal> {
    report_panics();
    let (plugin, description) = describe_with(parameters, &Bundle::default())?;
    holder.set(Some(plugin));
    Ok(description)
}

/// Describes `P` for that bundle.
///
/// # Errors
/// The plugin's refusal, or one that names a parameter the plugin never asked for.
pub fn describe_with<P: Plugin>(parameters: Vec<Parameter>, bundle: &Bundle) -> Result<(P, Description), Refusal> {
    let parameters = Parameters::new(parameters);
    let described = P::describe(&parameters, bundle)?;
    parameters.refuse_unknown()?;
    Ok(described)
}

/// The exported `unfold`.
///
/// # Errors
/// The plugin's refusal.
pub fn unfold<P: Plugin>(holder: &'static Holder<P>, request: &dyn Incoming) -> Result<Growth, Refusal> {
    described(holder, |plugin| {
        let request = Request::new(request);
        let mut growth = plugin.unfold(&request)?;
        remember_first_tensor(&mut growth, &request);
        Ok(growth)
    })
}

/// The exported `resume`.
///
/// # Errors
/// The plugin's refusal.
pub fn resume<P: Plugin>(holder: &'static Holder<P>, state: &[u8], event: &Event, request: &dyn Incoming) -> Result<Reaction, Refusal> {
    described(holder, |plugin| {
        let (state, first) = state.split_last_chunk().ok_or_else(|| Refusal::Internal("the state is none that this plugin left".into()))?;
        let request = Request::from_tensor(request, u32::from_le_bytes(*first));
        let mut reaction = plugin.resume(state, event, &request)?;
        if let Some(growth) = &mut reaction.growth {
            remember_first_tensor(growth, &request);
        }
        Ok(reaction)
    })
}

/// Puts behind a continuation's state the number of the first tensor that the request will have at the next call: the host does not say it.
fn remember_first_tensor(growth: &mut Growth, request: &Request) {
    let Some(next) = &mut growth.next else { return };
    let kept_from = next.keep_tensors_from;
    // The host lets go of no more tensors than there are, and brings none of them back.
    let first = if kept_from > request.first() { kept_from.min(request.end()) } else { request.first() };
    next.state.extend(first.to_le_bytes());
}

fn described<P: Plugin, T>(holder: &'static Holder<P>, call: impl FnOnce(&P) -> Result<T, Refusal>) -> Result<T, Refusal> {
    holder.with_borrow(|plugin| match plugin {
        Some(plugin) => call(plugin),
        None => Err(Refusal::Internal("this instance was never described".into())),
    })
}

/// A trap alone says "unreachable"; the panic's message leaves the sandbox as a note before it.
fn report_panics() {
    #[cfg(target_arch = "wasm32")]
    std::panic::set_hook(Box::new(|panic| crate::abi::cellwright::plugin::host::note(&panic.to_string())));
}

/// Exports a [`Plugin`] from a `cdylib`. On other targets than WebAssembly it exports nothing, so that unit tests link anywhere.
#[macro_export]
macro_rules! export_plugin {
    ($plugin:ty) => {
        #[cfg(not(target_arch = "wasm32"))]
        const _: () = {
            const fn is_plugin<P: $crate::Plugin>() {}
            is_plugin::<$plugin>()
        };
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            use $crate::{HostRequest, types};
            ::std::thread_local! {
                static PLUGIN: ::std::cell::RefCell<::std::option::Option<$plugin>> = const { ::std::cell::RefCell::new(None) };
            }
            struct Exported;
            impl $crate::abi::exports::cellwright::plugin::unfolding::Guest for Exported {
                fn describe(parameters: ::std::vec::Vec<types::Parameter>) -> Result<types::Description, types::Refusal> {
                    $crate::plugin::describe(&PLUGIN, parameters)
                }
                fn unfold() -> Result<types::Growth, types::Refusal> {
                    $crate::plugin::unfold(&PLUGIN, &HostRequest)
                }
                fn resume(state: ::std::vec::Vec<u8>, event: types::Event) -> Result<types::Reaction, types::Refusal> {
                    $crate::plugin::resume(&PLUGIN, &state, &event, &HostRequest)
                }
            }
    $crate::abi::export_abi!(Exported with_types_in $crate::abi);
        };
    };
}
