//! Deterministic stand-ins for the WASI preview 1 functions that language runtimes import whether they need them or not.
//!
//! There are no files, no arguments and no environment; the clock advances by a constant with every reading, randomness has a fixed seed,
//! and leaving the process is a trap.

use wasm_encoder::{
    CodeSection, ConstExpr, EntityType, ExportKind, ExportSection, Function, FunctionSection, GlobalSection, GlobalType, ImportSection,
    InstructionSink, MemArg, MemoryType, Module, TypeSection, ValType,
};
use wasmparser::FuncType;

use crate::error::Defect;

/// The module name of WASI preview 1.
pub(super) const MODULE: &str = "wasi_snapshot_preview1";

/// How far the clock moves with each reading.
const NANOSECONDS_PER_READING: i64 = 1_000_000;
const SEED: i64 = 0x2545_f491_4f6c_dd1d;

const SUCCESS: i32 = 0;
const BAD_DESCRIPTOR: i32 = 8;
const NOT_SUPPORTED: i32 = 52;

const CLOCK: u32 = 0;
const RANDOM: u32 = 1;

/// An adapter module that exports the named functions and needs nothing but the guest's memory.
pub(super) fn stubs(functions: &[(String, FuncType)]) -> Result<Vec<u8>, Defect> {
    let mut parts = Parts::default();
    let mut written = std::collections::BTreeSet::new();
    for (name, signature) in functions {
        if written.insert(name) {
            parts.function(name, signature)?;
        }
    }
    Ok(parts.finish())
}

#[derive(Default)]
struct Parts {
    types: TypeSection,
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
        let index = self.functions.len();
        self.types.ty().function(params, results);
        self.functions.function(index);
        self.exports.export(name, ExportKind::Func, index);
        self.code.function(&stub.body());
        Ok(())
    }

    fn finish(self) -> Vec<u8> {
        let mut imports = ImportSection::new();
        let memory = MemoryType { minimum: 0, maximum: None, memory64: false, shared: false, page_size_log2: None };
        imports.import("env", "memory", EntityType::Memory(memory));
        let mut globals = GlobalSection::new();
        let mutable = GlobalType { val_type: ValType::I64, mutable: true, shared: false };
        globals.global(mutable, &ConstExpr::i64_const(NANOSECONDS_PER_READING));
        globals.global(mutable, &ConstExpr::i64_const(SEED));
        let mut module = Module::new();
        module.section(&self.types).section(&imports).section(&self.functions).section(&globals).section(&self.exports).section(&self.code);
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
            "proc_exit" => Self::Exit,
            name if name.starts_with("fd_") || name.starts_with("path_") || name.starts_with("sock_") => Self::Fails(BAD_DESCRIPTOR),
            _ => Self::Fails(NOT_SUPPORTED),
        }
    }

    /// The parameters that the body counts on.
    fn params(self) -> Option<Vec<ValType>> {
        use ValType::{I32, I64};
        match self {
            Self::NoSizes | Self::Random | Self::ClockResolution => Some(vec![I32, I32]),
            Self::ClockTime => Some(vec![I32, I64, I32]),
            Self::Exit => Some(vec![I32]),
            Self::Nothing | Self::Fails(_) => None,
        }
    }

    fn body(self) -> Function {
        let locals = if self == Self::Random { vec![(1, ValType::I64)] } else { vec![] };
        let mut function = Function::new(locals);
        let mut code = function.instructions();
        match self {
            Self::NoSizes => {
                code.local_get(0).i32_const(0).i32_store(at(2)).local_get(1).i32_const(0).i32_store(at(2)).i32_const(SUCCESS);
            }
            Self::Nothing => {
                code.i32_const(SUCCESS);
            }
            Self::ClockTime => {
                code.local_get(2).global_get(CLOCK).i64_store(at(3));
                code.global_get(CLOCK).i64_const(NANOSECONDS_PER_READING).i64_add().global_set(CLOCK).i32_const(SUCCESS);
            }
            Self::ClockResolution => {
                code.local_get(1).i64_const(NANOSECONDS_PER_READING).i64_store(at(3)).i32_const(SUCCESS);
            }
            Self::Random => random(&mut code),
            Self::Exit => {
                code.unreachable();
            }
            Self::Fails(error) => {
                code.i32_const(error);
            }
        }
        code.end();
        function
    }
}

fn at(align: u32) -> MemArg {
    MemArg { offset: 0, align, memory_index: 0 }
}

/// Fills `length` (local 1) bytes at `pointer` (local 0), a byte for each step of a xorshift generator (local 2).
fn random(code: &mut InstructionSink<'_>) {
    code.global_get(RANDOM).local_set(2);
    code.block(wasm_encoder::BlockType::Empty).loop_(wasm_encoder::BlockType::Empty);
    code.local_get(1).i32_eqz().br_if(1);
    for (left, by) in [(true, 13), (false, 7), (true, 17)] {
        code.local_get(2).local_get(2).i64_const(by);
        if left {
            code.i64_shl()
        } else {
            code.i64_shr_u()
        };
        code.i64_xor().local_set(2);
    }
    code.local_get(0).local_get(2).i64_store8(at(0));
    code.local_get(0).i32_const(1).i32_add().local_set(0);
    code.local_get(1).i32_const(1).i32_sub().local_set(1);
    code.br(0).end().end();
    code.local_get(2).global_set(RANDOM).i32_const(SUCCESS);
}
