//! Kernels that are made of text, compiled for the CPU while the program runs: each a library of its own, with the emulation in it.
//!
//! A library stays where it is for as long as the process runs, and its file in the build's output folder for longer: the same text is compiled once.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::kernels::{Beginner, Ender, Launcher, Seeder};

/// Where the build left what every kernel begins with.
const FOLDER: &str = env!("CELLWRIGHT_COMPILED");
const COMPILER: &str = env!("CELLWRIGHT_CXX");
const FLAGS: &str = env!("CELLWRIGHT_CXX_FLAGS");
/// Load all symbols at once (`RTLD_NOW`).
const NOW: c_int = 2;

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// A compiled kernel and the emulation that runs it.
#[derive(Clone, Copy)]
pub(super) struct Library {
    pub(super) launch: Launcher,
    pub(super) begin: Beginner,
    pub(super) end: Ender,
    pub(super) seed: Seeder,
}

/// Those of this process, by their text.
static LIBRARIES: Mutex<BTreeMap<String, Library>> = Mutex::new(BTreeMap::new());

/// The library of a text.
///
/// # Errors
/// What the compiler said.
pub(super) fn library(source: &str) -> Result<Library, String> {
    let mut known = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(library) = known.get(source) {
        return Ok(*library);
    }
    let library = open(&file(source)?)?;
    known.insert(source.to_owned(), library);
    Ok(library)
}

/// The file of a text's library, made if it is not there.
fn file(source: &str) -> Result<PathBuf, String> {
    let mut hasher = DefaultHasher::new();
    source.hash(&mut hasher);
    let path = |ending: &str| Path::new(FOLDER).join(format!("{:016x}{ending}", hasher.finish()));
    let (made, kept) = (path(".so"), path(".cu"));
    // Two texts may have one number.
    if made.exists() && std::fs::read_to_string(&kept).is_ok_and(|text| text == source) {
        return Ok(made);
    }
    // Other processes do the same at the same time; whoever is last puts the same in place.
    let own = |path: &Path| path.with_extension(format!("{}.part", std::process::id()));
    let (text, library) = (own(&kept), own(&made).with_extension("so.part"));
    let failed = |error: std::io::Error| error.to_string();
    std::fs::write(&text, source).map_err(failed)?;
    let mut command = Command::new(COMPILER);
    command.args(FLAGS.split('\t')).args(["-w", "-shared", "-Wl,-Bsymbolic", "-include"]).arg(Path::new(FOLDER).join("prelude.h"));
    let built = command.args(["-x", "c++"]).arg(&text).arg("-o").arg(&library).output().map_err(failed)?;
    if !built.status.success() {
        let _ = std::fs::remove_file(&text);
        return Err(String::from_utf8_lossy(&built.stderr).into_owned());
    }
    std::fs::rename(&library, &made).map_err(failed)?;
    std::fs::rename(&text, &kept).map_err(failed)?;
    Ok(made)
}

fn open(path: &Path) -> Result<Library, String> {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| "a path holds a zero".to_owned())?;
    // SAFETY: a library that was compiled of the emulation's own sources, which does nothing when it is loaded but enter its kernel in its own table. It
    // is never closed, so that its functions stay.
    let library = unsafe { dlopen(name.as_ptr(), NOW) };
    let find = |name: &CStr| {
        // SAFETY: the library is open, and the name a string.
        let found = if library.is_null() { std::ptr::null_mut() } else { unsafe { dlsym(library, name.as_ptr()) } };
        if found.is_null() { Err(format!("{} has no {}", path.display(), name.to_string_lossy())) } else { Ok(found) }
    };
    let (launch, seed) = (find(c"emulate_launch")?, find(c"emulate_seed")?);
    let (begin, end) = (find(c"emulate_begin")?, find(c"emulate_end")?);
    // SAFETY: functions of just these types (`kernels/emulation/emulation.h`).
    Ok(unsafe {
        Library {
            launch: std::mem::transmute::<*mut c_void, Launcher>(launch),
            begin: std::mem::transmute::<*mut c_void, Beginner>(begin),
            end: std::mem::transmute::<*mut c_void, Ender>(end),
            seed: std::mem::transmute::<*mut c_void, Seeder>(seed),
        }
    })
}
