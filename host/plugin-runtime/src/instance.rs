//! One instance of a plugin with the store that owns it: its limits, what the host offers it, and the calls into it.
//!
//! An instance holds no request: what a call needs is put into the store for that call and taken out again. After a call that did not
//! come to its own end an instance is not sound, and its user must drop it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use wasmtime::component::{HasSelf, Lift, Linker};
use wasmtime::{Engine, ResourceLimiter, Store, UpdateDeadline};

use crate::abi::{Bindings, UnreadDescription, host, request, types};
use crate::allowance::{Allowance, Reading};
use crate::clock;
use crate::code::{Code, Describe, Functions};
use crate::convert;
use crate::error::{Blame, LimitReached};
use crate::limits::Limits;
use crate::request::{BundleView, RequestView};
use crate::sentence;
use crate::wasi::{self, Process};

/// What a plugin may say during one call.
const NOTES_MAX: usize = 32;
const NOTE_BYTES_MAX: usize = 2 << 10;

/// An instance that has grown is retired where less than this part of its memory is left.
const RETIRED_ROOM: usize = 8;

/// A call is first looked at when the engine's clock next ticks; most have ended by then, or when it ticks again. What is still running is looked at now and then.
const FIRST_LOOK_TICKS: u64 = 1;
const SECOND_LOOK_TICKS: u64 = 1;
const LATER_LOOK_TICKS: u64 = 5;

/// What the host's side of a call needs.
pub(crate) struct State {
    usage: Usage,
    allowance: Allowance,
    /// Whether the call was looked at before.
    is_seen: bool,
    notes: VecDeque<String>,
    /// The beginning of a line that its runtime prints.
    printed: Vec<u8>,
    pub(crate) process: Process,
    request: Option<Arc<RequestView>>,
    bundle: Option<Arc<dyn BundleView>>,
}

/// How much memory and how many table elements an instance has, against what it may have.
struct Usage {
    memory_bytes: usize,
    memory_bytes_max: usize,
    table_elements: usize,
    table_elements_max: usize,
}

impl ResourceLimiter for Usage {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.memory_bytes.saturating_add(desired.saturating_sub(current));
        if total > self.memory_bytes_max {
            return Err(LimitReached::Memory(self.memory_bytes_max).into());
        }
        self.memory_bytes = total;
        Ok(true)
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.table_elements.saturating_add(desired.saturating_sub(current));
        if total > self.table_elements_max {
            return Err(LimitReached::TableElements(self.table_elements_max).into());
        }
        self.table_elements = total;
        Ok(true)
    }
}

impl types::Host for State {}

impl State {
    /// Keeps a note; a panic's text is the last.
    fn keep(&mut self, mut note: String) {
        if self.notes.len() == NOTES_MAX {
            self.notes.pop_front();
        }
        sentence::truncate(&mut note, NOTE_BYTES_MAX);
        self.notes.push_back(sentence::of(&note));
    }

    /// Makes a note of each line that ends in these bytes. The rest waits for its end, or for that
    /// of the call.
    pub(crate) fn print(&mut self, bytes: &[u8]) {
        // Of so many bytes the lines before these are not kept anyway, or are cut.
        let bytes = &bytes[bytes.len().saturating_sub(NOTES_MAX * NOTE_BYTES_MAX)..];
        let mut lines = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(line) = lines.next() {
            let room = NOTE_BYTES_MAX - self.printed.len();
            self.printed.extend_from_slice(&line[..line.len().min(room)]);
            if lines.peek().is_some() {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.printed);
        if !line.trim_ascii().is_empty() {
            self.keep(String::from_utf8_lossy(&line).into_owned());
        }
    }

    fn take_notes(&mut self) -> Vec<String> {
        self.end_line();
        std::mem::take(&mut self.notes).into()
    }

    pub(crate) fn memory_bytes_max(&self) -> usize {
        self.usage.memory_bytes_max
    }

    fn request(&self) -> Result<&RequestView, Blame> {
        self.request.as_deref().ok_or_else(|| Blame::plugin("it asked about the request, and there is one in unfold and resume only"))
    }
}

impl request::Host for State {
    fn tensors(&mut self) -> wasmtime::Result<Vec<types::TensorSpec>> {
        Ok(self.request()?.specs())
    }

    fn parameters(&mut self) -> wasmtime::Result<Vec<types::Parameter>> {
        Ok(self.request()?.parameters())
    }

    fn ints(&mut self, tensor: u32) -> wasmtime::Result<Vec<i64>> {
        Ok(self.request()?.ints(tensor, self.usage.memory_bytes_max)?)
    }

    fn floats(&mut self, tensor: u32) -> wasmtime::Result<Vec<f32>> {
        Ok(self.request()?.floats(tensor, self.usage.memory_bytes_max)?)
    }

    fn texts(&mut self, tensor: u32) -> wasmtime::Result<Vec<String>> {
        Ok(self.request()?.texts(tensor, self.usage.memory_bytes_max)?)
    }
}

impl host::Host for State {
    fn note(&mut self, message: String) -> wasmtime::Result<()> {
        self.keep(message);
        Ok(())
    }

    fn file(&mut self, path: String) -> wasmtime::Result<Result<Vec<u8>, String>> {
        let Some(bundle) = &self.bundle else {
            return Err(
                Blame::plugin(format!("it asked for the file \"{}\", and files are there in describe only", sentence::of(&path))).into()
            );
        };
        Ok(match bundle.file(&path) {
            Some(contents) if contents.len() > self.usage.memory_bytes_max => {
                Err(format!("the file has {} bytes, more than this plugin's memory", contents.len()))
            }
            Some(contents) => Ok(contents),
            None => Err("the bundle has no such file".to_owned()),
        })
    }

    fn weights(&mut self) -> wasmtime::Result<Vec<types::Weight>> {
        let Some(bundle) = &self.bundle else {
            return Err(Blame::plugin("it asked for the bundle's weights, which are there in describe only").into());
        };
        Ok(bundle.weights().iter().map(convert::weight_to_guest).collect())
    }
}

/// A linker with everything that the host offers.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    Bindings::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
    wasi::add_stubs(&mut linker)?;
    Ok(linker)
}

/// A plugin, running.
pub(crate) struct Instance {
    store: Store<State>,
    functions: Functions,
    call_time: Duration,
    sound: bool,
    /// Bytes of its memory after its first call.
    first_call_bytes: Option<usize>,
}

impl Instance {
    /// A new instance and the answer to its first `describe`, both within the time of one.
    pub(crate) fn start(code: &Code, limits: &Limits, on_long_call: fn()) -> Result<Self, (wasmtime::Error, Vec<String>)> {
        let usage =
            Usage { memory_bytes: 0, memory_bytes_max: limits.memory_bytes, table_elements: 0, table_elements_max: limits.table_elements };
        let mut store = Store::new(
            code.engine(),
            State {
                usage,
                allowance: Allowance::new(limits.describe_time),
                is_seen: false,
                notes: VecDeque::new(),
                printed: Vec::new(),
                process: Process::default(),
                request: None,
                bundle: None,
            },
        );
        store.limiter(|state| &mut state.usage);
        store.set_hostcall_fuel(limits.answer_bytes);
        store.set_epoch_deadline(FIRST_LOOK_TICKS);
        store.epoch_deadline_callback(move |mut store| {
            let state = store.data_mut();
            let left = state.allowance.left(Reading::now())?;
            if !std::mem::replace(&mut state.is_seen, true) {
                return Ok(UpdateDeadline::Continue(SECOND_LOOK_TICKS));
            }
            on_long_call();
            Ok(UpdateDeadline::Continue(clock::ticks(left).min(LATER_LOOK_TICKS)))
        });
        match code.instantiate(&mut store) {
            Ok(functions) => Ok(Self { store, functions, call_time: limits.call_time, sound: true, first_call_bytes: None }),
            Err(error) => Err((error, store.data_mut().take_notes())),
        }
    }

    /// Calls `describe`, which must come first, within what is left of the time given to [`Instance::start`].
    pub(crate) fn describe(
        &mut self,
        parameters: &[types::Parameter],
        bundle: &Arc<dyn BundleView>,
    ) -> wasmtime::Result<Result<types::Description, types::Refusal>> {
        self.describe_with(self.functions.describe, parameters, bundle)
    }

    /// [`Instance::describe`], without reading what it answers.
    pub(crate) fn describe_unread(
        &mut self,
        parameters: &[types::Parameter],
        bundle: &Arc<dyn BundleView>,
    ) -> wasmtime::Result<Result<UnreadDescription, types::Refusal>> {
        self.describe_with(self.functions.describe_unread, parameters, bundle)
    }

    fn describe_with<'a, D: Lift + 'static>(
        &mut self,
        function: Describe<'a, D>,
        parameters: &'a [types::Parameter],
        bundle: &Arc<dyn BundleView>,
    ) -> wasmtime::Result<Result<D, types::Refusal>> {
        self.store.data_mut().bundle = Some(Arc::clone(bundle));
        let answer = function.call(&mut self.store, (parameters,));
        self.store.data_mut().bundle = None;
        self.sound &= answer.is_ok();
        Ok(answer?.0)
    }

    pub(crate) fn unfold(&mut self, request: &Arc<RequestView>) -> wasmtime::Result<Result<types::Growth, types::Refusal>> {
        self.enter(request);
        let answer = self.functions.unfold.call(&mut self.store, ()).map(|(answer,)| answer);
        self.leave(answer.is_ok());
        answer
    }

    pub(crate) fn resume(
        &mut self,
        state: &[u8],
        event: &types::Event,
        request: &Arc<RequestView>,
    ) -> wasmtime::Result<Result<types::Reaction, types::Refusal>> {
        self.enter(request);
        let answer = self.functions.resume.call(&mut self.store, (state, event)).map(|(answer,)| answer);
        self.leave(answer.is_ok());
        answer
    }

    /// Whether it has served a call, which may have left something in its memory.
    pub(crate) fn is_used(&self) -> bool {
        self.first_call_bytes.is_some()
    }

    /// Whether it may serve another call. A call that did not come to its own end leaves the guest in an unknown state. A guest that has
    /// grown close to its limit since its first call would soon fail one.
    pub(crate) fn is_reusable(&self) -> bool {
        let Usage { memory_bytes, memory_bytes_max, .. } = self.store.data().usage;
        let has_grown = self.first_call_bytes.is_some_and(|bytes| memory_bytes > bytes);
        self.sound && !(has_grown && memory_bytes_max - memory_bytes < memory_bytes_max / RETIRED_ROOM)
    }

    /// Bytes of its memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.store.data().usage.memory_bytes as u64
    }

    /// What the plugin noted last since this was last asked.
    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        self.store.data_mut().take_notes()
    }

    fn enter(&mut self, request: &Arc<RequestView>) {
        self.store.set_epoch_deadline(FIRST_LOOK_TICKS);
        let state = self.store.data_mut();
        state.allowance = Allowance::new(self.call_time);
        state.is_seen = false;
        state.request = Some(Arc::clone(request));
    }

    fn leave(&mut self, sound: bool) {
        let state = self.store.data_mut();
        state.request = None;
        self.first_call_bytes.get_or_insert(state.usage.memory_bytes);
        self.sound &= sound;
    }
}
