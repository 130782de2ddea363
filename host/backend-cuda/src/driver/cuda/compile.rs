//! Kernels that are made of text, compiled by NVRTC where its library is found.
//!
//! The library is looked for once, before the binding calls it, which would panic where it is missing or lacks a function. What was compiled is kept by its
//! text, so that a group that two models have in common, or two devices of one architecture, is compiled once.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use cudarc::nvrtc::sys;

use crate::driver::Compiler;

/// Functions of the library that are called.
const FUNCTIONS: &[&str] = &[
    "nvrtcCompileProgram",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
    "nvrtcGetErrorString",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
    "nvrtcGetSupportedArchs",
    "nvrtcGetNumSupportedArchs",
    "nvrtcVersion",
];

/// What a kernel's text may include, by name. There are no others: the library has no folder to look into.
const HEADERS: &[(&CStr, &str)] = &[
    (c"abi.h", concat!(include_str!("../../../../../kernels/abi.h"), "\0")),
    (c"abi_group.h", concat!(include_str!("../../../../../kernels/abi_group.h"), "\0")),
    (c"abi_transfer.h", concat!(include_str!("../../../../../kernels/abi_transfer.h"), "\0")),
    (c"group_numbers.cuh", concat!(include_str!("../../../../../kernels/group_numbers.cuh"), "\0")),
    (c"group_stretches.cuh", concat!(include_str!("../../../../../kernels/group_stretches.cuh"), "\0")),
    (c"kernel.cuh", concat!(include_str!("../../../../../kernels/kernel.cuh"), "\0")),
    (c"ptx.cuh", concat!(include_str!("../../../../../kernels/ptx.cuh"), "\0")),
    (c"tables.cuh", concat!(include_str!("../../../../../kernels/tables.cuh"), "\0")),
    (c"stdint.h", concat!(include_str!("../../../../../kernels/generated/stdint.h"), "\0")),
];

/// As `kernels/check` compiles what is embedded: nothing is fused but where the source says so, nothing is approximated, and
/// denormal numbers are zeros.
const OPTIONS: &[&CStr] = &[c"--std=c++17", c"--fmad=false", c"--ftz=true", c"--prec-div=true", c"--prec-sqrt=true"];

/// Texts whose code is kept at most; more are compiled again.
const KEPT_MAX: usize = 1024;

type Code = Arc<Vec<u8>>;

/// An architecture and a text.
type Key = ((u32, u32), String);

static KEPT: Mutex<BTreeMap<Key, Code>> = Mutex::new(BTreeMap::new());

/// The library's version, or why there is none to use.
static LIBRARY: LazyLock<Result<(i32, i32), String>> = LazyLock::new(find);

fn find() -> Result<(i32, i32), String> {
    // SAFETY: loads the library if there is one. That runs what the library runs when it is loaded, as every use of it does.
    if !unsafe { sys::is_culib_present() } {
        return Err("the system finds no library libnvrtc.so".to_owned());
    }
    // SAFETY: the library was just loaded, so that it is not missing now.
    let library = unsafe { sys::culib() };
    let has = |function: &&&str| {
        // SAFETY: only whether it is there is asked; it is never called through this type.
        unsafe { library.get::<*const ()>(function.as_bytes()) }.is_ok()
    };
    if let Some(function) = FUNCTIONS.iter().find(|function| !has(function)) {
        return Err(format!("the library libnvrtc.so that the system finds has no function {function}"));
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the function is there; both are integers of ours.
    done(unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) })?;
    Ok((major, minor))
}

fn done(result: sys::nvrtcResult) -> Result<(), String> {
    if result == sys::nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    // SAFETY: the function is there (`find`), and gives a string that stays.
    let said = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(result)) };
    Err(said.to_string_lossy().into_owned())
}

/// Who compiles for devices of that architecture.
pub(super) fn compiler((major, minor): (u32, u32)) -> Result<Compiler, String> {
    let version = LIBRARY.clone()?;
    let mut count = 0;
    // SAFETY: the function is there; the pointer is to an integer of ours.
    done(unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) })?;
    let mut known: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or_default()];
    // SAFETY: there is room for as many numbers as it said.
    done(unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) })?;
    let own = c_int::try_from(major * 10 + minor).unwrap_or_default();
    if !known.contains(&own) {
        return Err(format!("NVRTC {}.{} does not know compute capability {major}.{minor}", version.0, version.1));
    }
    Ok(Compiler::new(format!("NVRTC {}.{}", version.0, version.1), move |source| code(source, (major, minor)).map(drop)))
}

/// Machine code for devices of that architecture.
///
/// # Errors
/// What the compiler said.
pub(super) fn code(source: &str, capability: (u32, u32)) -> Result<Code, String> {
    LIBRARY.clone()?;
    let key = (capability, source.to_owned());
    if let Some(code) = KEPT.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(Arc::clone(code));
    }
    // Not under the lock: two workers that load one model may compile a kernel twice, but none waits for another one's.
    let code = Arc::new(compile(source, capability)?);
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() >= KEPT_MAX {
        kept.pop_first();
    }
    kept.insert(key, Arc::clone(&code));
    Ok(code)
}

/// A program of the library's, until it is dropped.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was made by the library and is given back once. There is nobody to tell if that fails.
        let _ = unsafe { sys::nvrtcDestroyProgram(&raw mut self.0) };
    }
}

fn compile(source: &str, (major, minor): (u32, u32)) -> Result<Vec<u8>, String> {
    let text = CString::new(source).map_err(|_| "a kernel's text holds a zero".to_owned())?;
    let names: Vec<*const c_char> = HEADERS.iter().map(|(name, _)| name.as_ptr()).collect();
    let texts: Vec<*const c_char> = HEADERS.iter().map(|(_, text)| text.as_ptr().cast()).collect();
    let mut program = Program(ptr::null_mut());
    // SAFETY: strings that end in zero and outlive the program; as many headers as names.
    done(unsafe {
        sys::nvrtcCreateProgram(
            &raw mut program.0,
            text.as_ptr(),
            c"compiled_group.cu".as_ptr(),
            HEADERS.len() as c_int,
            texts.as_ptr(),
            names.as_ptr(),
        )
    })?;
    let architecture = CString::new(format!("--gpu-architecture=sm_{major}{minor}")).map_err(|error| error.to_string())?;
    let options: Vec<*const c_char> = OPTIONS.iter().map(|option| option.as_ptr()).chain([architecture.as_ptr()]).collect();
    // SAFETY: a program of the library's, and strings that end in zero.
    let compiled = done(unsafe { sys::nvrtcCompileProgram(program.0, options.len() as c_int, options.as_ptr()) });
    compiled.map_err(|error| format!("{error}\n{}", log(&program)))?;
    let mut bytes = 0;
    // SAFETY: the program was compiled; the pointer is to an integer of ours.
    done(unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut bytes) })?;
    let mut code = vec![0_u8; bytes];
    // SAFETY: there is room for as many bytes as it said.
    done(unsafe { sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()) })?;
    Ok(code)
}

fn log(program: &Program) -> String {
    let mut bytes = 0;
    // SAFETY: a program of the library's; the pointer is to an integer of ours.
    if done(unsafe { sys::nvrtcGetProgramLogSize(program.0, &raw mut bytes) }).is_err() {
        return String::new();
    }
    let mut text = vec![0_u8; bytes];
    // SAFETY: there is room for as many bytes as it said.
    let _ = done(unsafe { sys::nvrtcGetProgramLog(program.0, text.as_mut_ptr().cast()) });
    String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned()
}
