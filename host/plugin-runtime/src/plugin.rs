//! A compiled plugin, before it knows a model's parameters.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cellwright_cell_graph::Attribute;
use wasmtime::Engine;
use wasmtime::component::{Component, Linker};

use crate::clock::Clock;
use crate::code::Code;
use crate::error::{CallError, Defect, Export};
use crate::fault::StackBytes;
use crate::instance::{Instance, State};
use crate::limits::Limits;
use crate::model::PluginModel;
use crate::request::BundleView;
use crate::sentence;
use crate::warm::Warmth;

/// Machine code of a plugin, checked to fit the ABI.
#[derive(Clone)]
pub struct Plugin {
    shared: Arc<Shared>,
    /// Whose models it is for.
    tenant: u32,
}

pub(crate) struct Shared {
    name: Arc<str>,
    code: Code,
    code_bytes: u64,
    /// What counts them, as long as they are there.
    counted: Mutex<Option<Box<dyn Any + Send>>>,
    runtime: Arc<Surroundings>,
}

/// What plugins need of their runtime for as long as they live.
pub(crate) struct Surroundings {
    pub(crate) engine: Engine,
    pub(crate) clock: Clock,
    pub(crate) linker: Linker<State>,
    pub(crate) limits: Limits,
    pub(crate) stack: StackBytes,
    pub(crate) warmth: Arc<Warmth<Instance>>,
    pub(crate) on_long_call: fn(),
    pub(crate) on_note: fn(Export, &str),
}

impl Plugin {
    /// From machine code of so many bytes.
    pub(crate) fn link(runtime: &Arc<Surroundings>, name: &str, (component, code_bytes): (&Component, u64)) -> Result<Self, Defect> {
        let interface = |error: wasmtime::Error| Defect::Interface(sentence::of_chain(&error));
        let code = Code::link(&runtime.linker, component).map_err(interface)?;
        let counted = Mutex::default();
        Ok(Self { shared: Arc::new(Shared { name: Arc::from(name), code, code_bytes, counted, runtime: Arc::clone(runtime) }), tenant: 0 })
    }

    /// To find it again as long as somebody has it.
    pub(crate) fn downgrade(&self) -> Weak<Shared> {
        Arc::downgrade(&self.shared)
    }

    pub(crate) fn upgrade(shared: &Weak<Shared>) -> Option<Self> {
        Some(Self { shared: shared.upgrade()?, tenant: 0 })
    }

    /// Bytes of its machine code, which all have in common that got it from one [`Runtime`](crate::Runtime) for one tenant and under one name.
    #[must_use]
    pub fn code_bytes(&self) -> u64 {
        self.shared.code_bytes
    }

    /// Has its machine code counted, if it is not: what `count` gives lives as long.
    ///
    /// # Errors
    ///
    /// As `count`.
    pub fn counted<T: Any + Send, E>(&self, count: impl FnOnce(u64) -> Result<T, E>) -> Result<(), E> {
        let mut counted = self.shared.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.is_none() {
            *counted = Some(Box::new(count(self.shared.code_bytes)?));
        }
        Ok(())
    }

    /// The name that errors call it by.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The same for another tenant's models than 0's: instances that are kept ready are shared out among tenants.
    pub(crate) fn for_tenant(self, tenant: u32) -> Self {
        Self { tenant, ..self }
    }

    /// Asks the plugin to describe its model, given the model's parameters and bundle, and keeps what it takes to unfold requests.
    ///
    /// `limits` can only lower the runtime's own.
    ///
    /// # Errors
    ///
    /// The plugin refuses the parameters, fails, or runs into a limit.
    pub fn with_parameters(
        &self,
        parameters: &[Attribute],
        bundle: Arc<dyn BundleView>,
        limits: &Limits,
    ) -> Result<PluginModel, CallError> {
        PluginModel::new(self.clone(), parameters, bundle, limits)
    }

    pub(crate) const fn tenant(&self) -> u32 {
        self.tenant
    }

    pub(crate) fn shared_name(&self) -> &Arc<str> {
        &self.shared.name
    }

    pub(crate) fn code(&self) -> &Code {
        &self.shared.code
    }

    pub(crate) fn runtime(&self) -> &Surroundings {
        &self.shared.runtime
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin").field("name", &self.shared.name).finish_non_exhaustive()
    }
}
