//! Stand-ins for WASI, which languages' runtimes import whether they need it or not. They give no
//! capability.
//!
//! There are no files, no arguments and no environment, and the standard input is empty. Printed
//! lines become notes. The clock of an instance begins at zero and moves with each reading and each
//! sleep, randomness has a fixed seed, and nothing ever waits. Components import WASI 0.2 from
//! here. Core modules import preview 1, which `prepare::wasi` translates to [`STUBS`]: so both see
//! the same.

use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, ComponentType, Linker, LinkerInstance, Lower, Resource, ResourceType};
use wasmtime::{Result, StoreContextMut};

use crate::error::Blame;
use crate::instance::State;

/// The packages of WASI that are imported by languages' runtimes.
const PACKAGES: [&str; 5] = ["cli", "io", "clocks", "random", "filesystem"];

/// What the translation of preview 1 imports. No plugin may import it itself.
pub(crate) const STUBS: &str = "cellwright:stubs/process@0.1.0";
/// Its description. `sleep` takes nanoseconds from now on, or the clock's time if `until`.
pub(crate) const STUBS_WIT: &str = "package cellwright:stubs@0.1.0;
interface process {
  print: func(bytes: list<u8>);
  now: func() -> u64;
  sleep: func(nanoseconds: u64, until: bool);
  random: func() -> u8;
  exit: func(code: u32);
}
world stubs { import process; }";

/// How far the clock moves with each reading.
pub(crate) const NANOSECONDS_PER_READING: u64 = 1_000_000;
const NANOSECONDS_PER_SECOND: u64 = 1_000_000_000;
const SEED: u64 = 0x2545_f491_4f6c_dd1d;

/// What one write to a stream may have.
const WRITE_BYTES_MAX: u64 = 64 << 10;
/// A guest that drops no handles is stopped here: the host holds an entry for each.
const HANDLES_MAX: u32 = 1024;

/// The interface of WASI that an import names, without package and version; none for names of other
/// packages.
pub(crate) fn interface(import: &str) -> Option<&str> {
    let (package, rest) = import.strip_prefix("wasi:")?.split_once('/')?;
    let (interface, version) = rest.split_once('@')?;
    (PACKAGES.contains(&package) && version.starts_with("0.2.")).then_some(interface)
}

/// The clock and the randomness of one instance, and its handles.
pub(crate) struct Process {
    clock: u64,
    random: u64,
    handles: u32,
}

impl Default for Process {
    fn default() -> Self {
        Self { clock: 0, random: SEED, handles: 0 }
    }
}

impl Process {
    fn now(&mut self) -> u64 {
        self.clock = self.clock.saturating_add(NANOSECONDS_PER_READING);
        self.clock
    }

    fn sleep(&mut self, nanoseconds: u64, until: bool) {
        self.clock = if until { self.clock.max(nanoseconds) } else { self.clock.saturating_add(nanoseconds) };
    }

    /// The lowest byte of each step of a xorshift generator.
    fn random(&mut self) -> u8 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.to_le_bytes()[0]
    }

    fn random_u64(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.random()))
    }

    fn handle(&mut self) -> Result<Resource<Handle>> {
        if self.handles == HANDLES_MAX {
            return Err(Blame::plugin(format!("it holds {HANDLES_MAX} handles of streams and timers: drop them after use")).into());
        }
        self.handles += 1;
        Ok(Resource::new_own(0))
    }
}

/// Any resource of WASI: all streams are one, and every timer is due.
struct Handle;

/// An error of a stream; only its end is ever reported.
#[derive(ComponentType, Lower)]
#[component(variant)]
enum StreamError {
    #[component(name = "last-operation-failed")]
    #[expect(dead_code, reason = "the type has it")]
    Failed(Resource<Handle>),
    #[component(name = "closed")]
    Closed,
}

#[derive(ComponentType, Lower)]
#[component(record)]
struct Time {
    seconds: u64,
    nanoseconds: u32,
}

impl Time {
    fn of(nanoseconds: u64) -> Self {
        let rest = u32::try_from(nanoseconds % NANOSECONDS_PER_SECOND).expect("less than a second");
        Self { seconds: nanoseconds / NANOSECONDS_PER_SECOND, nanoseconds: rest }
    }
}

/// Adds what the translation of preview 1 imports.
pub(crate) fn add_stubs(linker: &mut Linker<State>) -> Result<()> {
    let mut stubs = linker.instance(STUBS)?;
    stubs.func_wrap("print", |mut store: Store<'_>, (bytes,): (Vec<u8>,)| {
        store.data_mut().print(&bytes);
        Ok(())
    })?;
    stubs.func_wrap("now", |mut store: Store<'_>, ()| Ok((process(&mut store).now(),)))?;
    stubs.func_wrap("sleep", |mut store: Store<'_>, (time, until): (u64, bool)| {
        process(&mut store).sleep(time, until);
        Ok(())
    })?;
    stubs.func_wrap("random", |mut store: Store<'_>, ()| Ok((process(&mut store).random(),)))?;
    stubs.func_wrap("exit", |_: Store<'_>, (code,): (u32,)| exit(code))
}

/// A linker with the functions of WASI that this component imports.
pub(crate) fn linker_for(linker: &Linker<State>, component: &Component) -> Result<Linker<State>> {
    let (mut linker, engine) = (linker.clone(), component.engine());
    for (import, item) in component.component_type().imports(engine) {
        let (Some(interface), ComponentItem::ComponentInstance(items)) = (interface(import), item.ty) else { continue };
        let mut at = linker.instance(import)?;
        for (name, item) in items.exports(engine) {
            match item.ty {
                ComponentItem::ComponentFunc(_) => offer(&mut at, (import, interface), name)?,
                ComponentItem::Resource(_) => at.resource(name, ResourceType::host::<Handle>(), |mut store, _| {
                    process(&mut store).handles -= 1;
                    Ok(())
                })?,
                _ => {}
            }
        }
    }
    Ok(linker)
}

type Store<'a> = StoreContextMut<'a, State>;
type Streamed<T> = (std::result::Result<T, StreamError>,);

fn process<'a>(store: &'a mut Store<'_>) -> &'a mut Process {
    &mut store.data_mut().process
}

fn exit(code: u32) -> Result<()> {
    Err(Blame::plugin(format!("it left its process with code {code}, and a plugin has none to leave")).into())
}

fn handle(mut store: Store<'_>) -> Result<(Resource<Handle>,)> {
    Ok((process(&mut store).handle()?,))
}

fn random_bytes(mut store: Store<'_>, (length,): (u64,)) -> Result<(Vec<u8>,)> {
    let state = store.data_mut();
    let bytes_max = state.memory_bytes_max();
    let fits = usize::try_from(length).ok().filter(|length| *length <= bytes_max);
    let length =
        fits.ok_or_else(|| Blame::plugin(format!("it asked for {length} random bytes, more than its memory of {bytes_max} bytes")))?;
    Ok(((0..length).map(|_| state.process.random()).collect(),))
}

fn wait(mut store: Store<'_>, time: u64, until: bool) -> Result<(Resource<Handle>,)> {
    process(&mut store).sleep(time, until);
    handle(store)
}

/// Defines one function of WASI 0.2. One that no plugin has a use for ends the call, and is named.
fn offer(at: &mut LinkerInstance<'_, State>, (import, interface): (&str, &str), name: &str) -> Result<()> {
    match (interface, name) {
        ("environment", "get-environment") => at.func_wrap(name, |_: Store<'_>, ()| Ok((Vec::<(String, String)>::new(),))),
        ("environment", "get-arguments") => at.func_wrap(name, |_: Store<'_>, ()| Ok((Vec::<String>::new(),))),
        ("environment", "initial-cwd") => at.func_wrap(name, |_: Store<'_>, ()| Ok((None::<String>,))),
        ("exit", "exit") => at.func_wrap(name, |_: Store<'_>, (status,): (std::result::Result<(), ()>,)| exit(u32::from(status.is_err()))),
        ("exit", "exit-with-code") => at.func_wrap(name, |_: Store<'_>, (code,): (u8,)| exit(code.into())),
        ("stdin", "get-stdin") | ("stdout", "get-stdout") | ("stderr", "get-stderr") => {
            at.func_wrap(name, |store: Store<'_>, ()| handle(store))
        }
        ("streams", "[method]input-stream.subscribe" | "[method]output-stream.subscribe") => {
            at.func_wrap(name, |store: Store<'_>, _: (Resource<Handle>,)| handle(store))
        }
        ("terminal-stdin", "get-terminal-stdin") => at.func_wrap(name, |_: Store<'_>, ()| Ok((None::<Resource<Handle>>,))),
        // To a terminal a runtime prints each line as it ends.
        ("terminal-stdout", "get-terminal-stdout") | ("terminal-stderr", "get-terminal-stderr") => {
            at.func_wrap(name, |store: Store<'_>, ()| Ok((Some(handle(store)?.0),)))
        }
        ("streams", "[method]input-stream.read" | "[method]input-stream.blocking-read") => {
            at.func_wrap(name, |_: Store<'_>, _: (Resource<Handle>, u64)| Ok::<Streamed<Vec<u8>>, _>((Err(StreamError::Closed),)))
        }
        ("streams", "[method]input-stream.skip" | "[method]input-stream.blocking-skip") => {
            at.func_wrap(name, |_: Store<'_>, _: (Resource<Handle>, u64)| Ok::<Streamed<u64>, _>((Err(StreamError::Closed),)))
        }
        ("streams", "[method]output-stream.check-write") => {
            at.func_wrap(name, |_: Store<'_>, _: (Resource<Handle>,)| Ok::<Streamed<u64>, _>((Ok(WRITE_BYTES_MAX),)))
        }
        ("streams", "[method]output-stream.write" | "[method]output-stream.blocking-write-and-flush") => {
            at.func_wrap(name, |mut store: Store<'_>, (_, bytes): (Resource<Handle>, Vec<u8>)| {
                store.data_mut().print(&bytes);
                Ok::<Streamed<()>, _>((Ok(()),))
            })
        }
        ("streams", "[method]output-stream.flush" | "[method]output-stream.blocking-flush") => {
            at.func_wrap(name, |_: Store<'_>, _: (Resource<Handle>,)| Ok::<Streamed<()>, _>((Ok(()),)))
        }
        ("poll", "[method]pollable.ready") => at.func_wrap(name, |_: Store<'_>, _: (Resource<Handle>,)| Ok((true,))),
        ("poll", "[method]pollable.block") => at.func_wrap(name, |_: Store<'_>, _: (Resource<Handle>,)| Ok(())),
        ("poll", "poll") => {
            at.func_wrap(name, |_: Store<'_>, (all,): (Vec<Resource<Handle>>,)| Ok(((0_u32..).take(all.len()).collect::<Vec<_>>(),)))
        }
        ("monotonic-clock", "now") => at.func_wrap(name, |mut store: Store<'_>, ()| Ok((process(&mut store).now(),))),
        ("monotonic-clock", "resolution") => at.func_wrap(name, |_: Store<'_>, ()| Ok((NANOSECONDS_PER_READING,))),
        ("monotonic-clock", "subscribe-duration") => at.func_wrap(name, |store: Store<'_>, (time,): (u64,)| wait(store, time, false)),
        ("monotonic-clock", "subscribe-instant") => at.func_wrap(name, |store: Store<'_>, (time,): (u64,)| wait(store, time, true)),
        ("wall-clock", "now") => at.func_wrap(name, |mut store: Store<'_>, ()| Ok((Time::of(process(&mut store).now()),))),
        ("wall-clock", "resolution") => at.func_wrap(name, |_: Store<'_>, ()| Ok((Time::of(NANOSECONDS_PER_READING),))),
        ("random", "get-random-bytes") | ("insecure", "get-insecure-random-bytes") => at.func_wrap(name, random_bytes),
        ("random", "get-random-u64") | ("insecure", "get-insecure-random-u64") => {
            at.func_wrap(name, |mut store: Store<'_>, ()| Ok((process(&mut store).random_u64(),)))
        }
        ("insecure-seed", "insecure-seed") => at.func_wrap(name, |mut store: Store<'_>, ()| {
            let process = process(&mut store);
            Ok(((process.random_u64(), process.random_u64()),))
        }),
        ("preopens", "get-directories") => at.func_wrap(name, |_: Store<'_>, ()| Ok((Vec::<(Resource<Handle>, String)>::new(),))),
        _ => {
            let called = format!("it called `{name}` of {import}, which does nothing in a plugin: build it without that");
            at.func_new(name, move |_, _, _, _| Err(Blame::plugin(called.clone()).into()))
        }
    }
}
