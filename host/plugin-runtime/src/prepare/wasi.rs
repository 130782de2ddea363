//! Translates the functions of WASI preview 1, which languages' runtimes import whether they need
//! them or not, to the host's stand-ins.
//!
//! The adapter is made for what a module imports. It has no memory of its own and needs nothing but
//! the guest's. See [`crate::wasi`].

use wasm_encoder::{
    BlockType, CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, ImportSection, InstructionSink, MemArg,
    MemoryType, Module, TypeSection, ValType,
};
use wasmparser::FuncType;

use crate::error::Defect;
use crate::wasi::{NANOSECONDS_PER_READING, STUBS, STUBS_WIT};

/// The module name of WASI preview 1.
pub(super) const MODULE: &str = "wasi_snapshot_preview1";

const SUCCESS: i32 = 0;
const BAD_DESCRIPTOR: i32 = 8;
const INVALID: i32 = 28;
const NOT_SUPPORTED: i32 = 52;

/// What the host offers instead, by the number that a call has: its imports come first.
const HOST: [(&str, &[ValType], &[ValType]); 5] = [
    ("print", &[ValType::I32, ValType::I32], &[]),
    ("now", &[], &[ValType::I64]),
    ("sleep", &[ValType::I64, ValType::I32], &[]),
    ("random", &[], &[ValType::I32]),
    ("exit", &[ValType::I32], &[]),
];
const PRINT: u32 = 0;
const NOW: u32 = 1;
const SLEEP: u32 = 2;
const RANDOM: u32 = 3;
const EXIT: u32 = 4;

/// An adapter module that exports the named functions.
pub(super) fn stubs(functions: &[(String, FuncType)]) -> Result<Vec<u8>, Defect> {
    let mut parts = Parts::default();
    let memory = MemoryType { minimum: 0, maximum: None, memory64: false, shared: false, page_size_log2: None };
    parts.imports.import("env", "memory", EntityType::Memory(memory));
    for (index, (name, params, results)) in (0..).zip(HOST) {
        parts.types.ty().function(params.iter().copied(), results.iter().copied());
        parts.imports.import(STUBS, name, EntityType::Function(index));
    }
    let mut written = std::collections::BTreeSet::new();
    for (name, signature) in functions {
        if written.insert(name) {
            parts.function(name, signature)?;
        }
    }
    let mut module = parts.finish();
    super::embed(&mut module, STUBS_WIT, "stubs")?;
    Ok(module)
}

#[derive(Default)]
struct Parts {
    types: TypeSection,
    imports: ImportSection,
    functions: FunctionSection,
    exports: ExportSection,
    code: CodeSection,
}

impl Parts {
    fn function(&mut self, name: &str, signature: &FuncType) -> Result<(), Defect> {
        let params = signature.params().iter().map(|ty| value_type(name, *ty)).collect::<Result<Vec<_>, _>>()?;
        let results = signature.results().iter().map(|ty| value_type(name, *ty)).collect::<Result<Vec<_>, _>>()?;
        let stub = Stub::of(name);
        if stub.params().is_some_and(|expected| expected != params)
            || !(results == [ValType::I32] || stub == Stub::Exit && results.is_empty())
        {
            return Err(wrong_signature(name));
        }
        let index = self.types.len();
        self.types.ty().function(params, results);
        self.functions.function(index);
        // Each has a type of its own, as the imports before them have: so both have one number.
        self.exports.export(name, ExportKind::Func, index);
        self.code.function(&stub.body());
        Ok(())
    }

    fn finish(self) -> Vec<u8> {
        let mut module = Module::new();
        module.section(&self.types).section(&self.imports).section(&self.functions).section(&self.exports).section(&self.code);
        module.finish()
    }
}

fn value_type(name: &str, ty: wasmparser::ValType) -> Result<ValType, Defect> {
    match ty {
        wasmparser::ValType::I32 => Ok(ValType::I32),
        wasmparser::ValType::I64 => Ok(ValType::I64),
        _ => Err(wrong_signature(name)),
    }
}

fn wrong_signature(name: &str) -> Defect {
    Defect::Interface(format!("it imports {MODULE}.{name} with a signature that WASI does not give it"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stub {
    /// Writes two zeros: no arguments, no environment.
    NoSizes,
    /// Succeeds without doing anything.
    Nothing,
    ClockTime,
    ClockResolution,
    Random,
    /// To the standard output and error only.
    Write,
    /// The standard input is at its end.
    Read,
    /// The three standard streams are terminals: to those a runtime prints each line as it ends.
    Status,
    /// Every event has happened.
    Poll,
    Exit,
    /// Answers with this error number.
    Fails(i32),
}

impl Stub {
    fn of(name: &str) -> Self {
        match name {
            "args_sizes_get" | "environ_sizes_get" => Self::NoSizes,
            "args_get" | "environ_get" | "sched_yield" => Self::Nothing,
            "clock_time_get" => Self::ClockTime,
            "clock_res_get" => Self::ClockResolution,
            "random_get" => Self::Random,
            "fd_write" => Self::Write,
            "fd_read" => Self::Read,
            "fd_fdstat_get" => Self::Status,
            "poll_oneoff" => Self::Poll,
            "proc_exit" => Self::Exit,
            name if name.starts_with("fd_") || name.starts_with("path_") || name.starts_with("sock_") => Self::Fails(BAD_DESCRIPTOR),
            _ => Self::Fails(NOT_SUPPORTED),
        }
    }

    /// The parameters that the body counts on.
    fn params(self) -> Option<Vec<ValType>> {
        use ValType::{I32, I64};
        match self {
            Self::NoSizes | Self::Random | Self::ClockResolution | Self::Status => Some(vec![I32, I32]),
            Self::ClockTime => Some(vec![I32, I64, I32]),
            Self::Write | Self::Read | Self::Poll => Some(vec![I32, I32, I32, I32]),
            Self::Exit => Some(vec![I32]),
            Self::Nothing | Self::Fails(_) => None,
        }
    }

    fn body(self) -> Function {
        let mut function = Function::new([(1, ValType::I32)]);
        let mut code = function.instructions();
        match self {
            Self::NoSizes => {
                code.local_get(0).i32_const(0).i32_store(at(0, 2)).local_get(1).i32_const(0).i32_store(at(0, 2)).i32_const(SUCCESS);
            }
            Self::Nothing => {
                code.i32_const(SUCCESS);
            }
            Self::ClockTime => {
                code.local_get(2).call(NOW).i64_store(at(0, 3)).i32_const(SUCCESS);
            }
            Self::ClockResolution => {
                code.local_get(1).i64_const(NANOSECONDS_PER_READING.cast_signed()).i64_store(at(0, 3)).i32_const(SUCCESS);
            }
            Self::Random => random(&mut code),
            Self::Write => write(&mut code),
            Self::Read => {
                fails_if(&mut code, BAD_DESCRIPTOR, |code| code.local_get(0));
                code.local_get(3).i32_const(0).i32_store(at(0, 2)).i32_const(SUCCESS);
            }
            Self::Status => status(&mut code),
            Self::Poll => poll(&mut code),
            Self::Exit => {
                code.local_get(0).call(EXIT).unreachable();
            }
            Self::Fails(error) => {
                code.i32_const(error);
            }
        }
        code.end();
        function
    }
}

fn at(offset: u64, align: u32) -> MemArg {
    MemArg { offset, align, memory_index: 0 }
}

/// Returns this error number if the condition is not 0.
fn fails_if<'a, 'b>(
    code: &'a mut InstructionSink<'b>,
    error: i32,
    condition: impl FnOnce(&'a mut InstructionSink<'b>) -> &'a mut InstructionSink<'b>,
) {
    condition(code).if_(BlockType::Empty).i32_const(error).return_().end();
}

/// The body as often as the number in that local, which counts down.
fn repeat(code: &mut InstructionSink<'_>, count: u32, body: impl FnOnce(&mut InstructionSink<'_>)) {
    code.block(BlockType::Empty).loop_(BlockType::Empty).local_get(count).i32_eqz().br_if(1);
    body(code);
    code.local_get(count).i32_const(1).i32_sub().local_set(count).br(0).end().end();
}

/// Moves the address in that local on.
fn advance(code: &mut InstructionSink<'_>, address: u32, bytes: i32) {
    code.local_get(address).i32_const(bytes).i32_add().local_set(address);
}

/// Fills `length` (local 1) bytes at `pointer` (local 0).
fn random(code: &mut InstructionSink<'_>) {
    repeat(code, 1, |code| {
        code.local_get(0).call(RANDOM).i32_store8(at(0, 0));
        advance(code, 0, 1);
    });
    code.i32_const(SUCCESS);
}

/// Prints `count` (local 2) pieces, each an address and a length at `pieces` (local 1). Says at
/// local 3 how many bytes they have, counted in local 4.
fn write(code: &mut InstructionSink<'_>) {
    fails_if(code, BAD_DESCRIPTOR, |code| code.local_get(0).i32_const(1).i32_sub().i32_const(1).i32_gt_u());
    repeat(code, 2, |code| {
        code.local_get(1).i32_load(at(0, 2)).local_get(1).i32_load(at(4, 2)).call(PRINT);
        code.local_get(4).local_get(1).i32_load(at(4, 2)).i32_add().local_set(4);
        advance(code, 1, 8);
    });
    code.local_get(3).local_get(4).i32_store(at(0, 2)).i32_const(SUCCESS);
}

/// Writes to local 1 that the descriptor is a character device without flags that may be read and
/// written, and not be moved in.
fn status(code: &mut InstructionSink<'_>) {
    const CHARACTER_DEVICE: i64 = 2;
    const READ_AND_WRITE: i64 = 1 << 1 | 1 << 6;
    fails_if(code, BAD_DESCRIPTOR, |code| code.local_get(0).i32_const(2).i32_gt_u());
    for (offset, value) in [(0, CHARACTER_DEVICE), (8, READ_AND_WRITE), (16, 0)] {
        code.local_get(1).i64_const(value).i64_store(at(offset, 3));
    }
    code.i32_const(SUCCESS);
}

/// Answers each of `count` (local 2) subscriptions of 48 bytes (local 0) by an event of 32 bytes
/// (local 1), and says at local 3 how many. The clock moves on by what a timer waits for.
fn poll(code: &mut InstructionSink<'_>) {
    fails_if(code, INVALID, |code| code.local_get(2).i32_eqz());
    code.local_get(3).local_get(2).i32_store(at(0, 2));
    repeat(code, 2, |code| {
        // A subscription is {what to say back, kind, clock, time, precision, whether the time is
        // absolute}; a timer's kind is 0.
        code.local_get(0).i32_load8_u(at(8, 0)).i32_eqz().if_(BlockType::Empty);
        code.local_get(0).i64_load(at(24, 3)).local_get(0).i32_load16_u(at(40, 1)).i32_const(1).i32_and().call(SLEEP).end();
        code.local_get(1).local_get(0).i64_load(at(0, 3)).i64_store(at(0, 3));
        // {what was to be said back, no error, kind, no bytes, no flags}
        code.local_get(1).local_get(0).i32_load8_u(at(8, 0)).i32_const(16).i32_shl().i64_extend_i32_u().i64_store(at(8, 3));
        code.local_get(1).i64_const(0).i64_store(at(16, 3)).local_get(1).i64_const(0).i64_store(at(24, 3));
        advance(code, 0, 48);
        advance(code, 1, 32);
    });
    code.i32_const(SUCCESS);
}
