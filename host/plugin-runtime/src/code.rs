//! A plugin's machine code, linked to what the host offers, and the functions that it exports.
//!
//! Their types are checked here, once per plugin: with every instance anew it would take longer than making the instance.

use std::marker::PhantomData;

use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, ComponentExportIndex, ComponentNamedList, Instance, InstancePre, Lift, Linker, Lower, TypedFunc};
use wasmtime::{AsContextMut, Engine, format_err};

use crate::abi::{self, UnreadDescription, types};
use crate::instance::State;
use crate::wasi;

type DescribeTakes<'a> = (&'a [types::Parameter],);
type ResumeTakes<'a> = (&'a [u8], &'a types::Event);
type Gives<T> = (Result<T, types::Refusal>,);

/// `describe`, whose answer is read into `D`.
pub(crate) type Describe<'a, D> = TypedFunc<DescribeTakes<'a>, Gives<D>>;

/// Machine code that has the ABI's functions.
pub(crate) struct Code {
    linked: InstancePre<State>,
    describe: Export<DescribeTakes<'static>, Gives<types::Description>>,
    describe_unread: Export<DescribeTakes<'static>, Gives<UnreadDescription>>,
    unfold: Export<(), Gives<types::Growth>>,
    resume: Export<ResumeTakes<'static>, Gives<types::Reaction>>,
}

/// The functions of one instance.
pub(crate) struct Functions {
    pub(crate) describe: Describe<'static, types::Description>,
    pub(crate) describe_unread: Describe<'static, UnreadDescription>,
    pub(crate) unfold: TypedFunc<(), Gives<types::Growth>>,
    pub(crate) resume: TypedFunc<ResumeTakes<'static>, Gives<types::Reaction>>,
}

impl Code {
    /// # Errors
    ///
    /// The component asks for what the host does not offer, or lacks a function of the ABI, or has one of other types.
    pub(crate) fn link(linker: &Linker<State>, component: &Component) -> wasmtime::Result<Self> {
        let linked = wasi::linker_for(linker, component)?.instantiate_pre(component)?;
        let interface = component.get_export_index(None, abi::UNFOLDING);
        let interface = interface.ok_or_else(|| format_err!("it exports no {}", abi::UNFOLDING))?;
        Ok(Self {
            describe: Export::find(&linked, &interface, "describe")?,
            describe_unread: Export::find(&linked, &interface, "describe")?,
            unfold: Export::find(&linked, &interface, "unfold")?,
            resume: Export::find(&linked, &interface, "resume")?,
            linked,
        })
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.linked.engine()
    }

    pub(crate) fn instantiate(&self, mut store: impl AsContextMut<Data = State>) -> wasmtime::Result<Functions> {
        let instance = self.linked.instantiate(&mut store)?;
        Ok(Functions {
            describe: self.describe.of(instance, &mut store)?,
            describe_unread: self.describe_unread.of(instance, &mut store)?,
            unfold: self.unfold.of(instance, &mut store)?,
            resume: self.resume.of(instance, &mut store)?,
        })
    }
}

/// A function that a component exports with these types.
struct Export<P, R> {
    index: ComponentExportIndex,
    types: PhantomData<(P, R)>,
}

impl<P: ComponentNamedList + Lower, R: ComponentNamedList + Lift> Export<P, R> {
    fn find(linked: &InstancePre<State>, interface: &ComponentExportIndex, name: &str) -> wasmtime::Result<Self> {
        let Some((ComponentItem::ComponentFunc(function), index)) = linked.component().get_export(Some(interface), name) else {
            return Err(format_err!("it exports no function `{name}`"));
        };
        function.typecheck::<P, R>(&linked.instance_type()).map_err(|error| error.context(format!("its `{name}` has other types")))?;
        Ok(Self { index, types: PhantomData })
    }

    fn of(&self, instance: Instance, store: impl AsContextMut) -> wasmtime::Result<TypedFunc<P, R>> {
        // An index of another component's export finds nothing.
        let function = instance.get_func(store, self.index).ok_or_else(|| format_err!("an instance lacks what its component exports"))?;
        // SAFETY: `find` checked that this export of the instance's component takes `P` and returns `R`.
        Ok(unsafe { TypedFunc::new_unchecked(function) })
    }
}
