//! The kernels' own sources, compiled for the CPU (`kernels/emulation`, by this crate's `build.rs`).

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;

use super::compile::Library;
use super::launches::Queued;

/// Bytes of a sentence that the emulation may write.
const ERROR_BYTES: usize = 1024;

/// `emulate_launch` of an emulation.
pub(super) type Launcher = unsafe extern "C" fn(*const c_char, *const u32, u32, u32, *const c_void, *mut c_char, usize) -> c_int;
/// `emulate_begin` of one.
pub(super) type Beginner =
    unsafe extern "C" fn(*const c_char, *const u32, u32, u32, *const c_void, c_int, *mut *mut c_void, *mut c_char, usize) -> c_int;
/// `emulate_end` of one.
pub(super) type Ender = unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> c_int;
/// `emulate_seed` of one.
pub(super) type Seeder = unsafe extern "C" fn(u64);

unsafe extern "C" {
    fn emulate_launch(
        kernel: *const c_char,
        grid: *const u32,
        threads: u32,
        shared_bytes: u32,
        arguments: *const c_void,
        error: *mut c_char,
        error_bytes: usize,
    ) -> c_int;
    fn emulate_begin(
        kernel: *const c_char,
        grid: *const u32,
        threads: u32,
        shared_bytes: u32,
        arguments: *const c_void,
        early: c_int,
        begun: *mut *mut c_void,
        error: *mut c_char,
        error_bytes: usize,
    ) -> c_int;
    fn emulate_end(begun: *mut c_void, error: *mut c_char, error_bytes: usize) -> c_int;
    fn emulate_size_of(kernel: *const c_char) -> c_int;
    fn emulate_is_cooperative(kernel: *const c_char) -> c_int;
    fn emulate_seed(seed: u64);
}

/// The emulation of this program's own kernels.
const OWN: Library = Library { launch: emulate_launch, begin: emulate_begin, end: emulate_end, seed: emulate_seed };

/// A launch that has begun, of which the rest is to run on the thread that began it. If nobody does that, it stays as it is until that thread ends.
pub(super) struct Begun {
    launch: NonNull<c_void>,
    end: Ender,
}

// SAFETY: whoever else has it meanwhile does nothing with it; it is ended on the thread that began it (`end`).
unsafe impl Send for Begun {}

/// How many bytes a kernel's arguments take; none if there is no such kernel.
pub(super) fn argument_bytes(name: &str) -> Option<usize> {
    let name = CString::new(name).ok()?;
    // SAFETY: a string that ends in zero, read only.
    usize::try_from(unsafe { emulate_size_of(name.as_ptr()) }).ok()
}

/// Whether a kernel's blocks wait for one another.
pub(super) fn is_cooperative(name: &str) -> bool {
    // SAFETY: a string that ends in zero, read only.
    CString::new(name).is_ok_and(|name| unsafe { emulate_is_cooperative(name.as_ptr()) } == 1)
}

/// From now on this thread's launches let their blocks' threads take turns in the order of this seed.
pub(super) fn seed(seed: u64) {
    // SAFETY: it changes what belongs to this thread alone.
    unsafe { emulate_seed(seed) };
}

/// The emulation that has a launch's kernel: this program's own, or that of a kernel that was compiled since, where the order of threads is drawn anew.
fn emulation(queued: &Queued, seed: u64) -> Library {
    let Some(library) = queued.compiled else { return OWN };
    // SAFETY: it changes what belongs to this thread alone.
    unsafe { (library.seed)(seed) };
    library
}

/// What a call of the emulation came to, which may write a sentence and says whether it did.
fn told(name: &str, call: impl FnOnce(&CStr, &mut [u8]) -> c_int) -> Result<(), String> {
    let name_c = CString::new(name).map_err(|_| "a kernel's name holds a zero".to_owned())?;
    let mut error = [0_u8; ERROR_BYTES];
    if call(&name_c, &mut error) == 0 {
        return Ok(());
    }
    let sentence = CStr::from_bytes_until_nul(&error).unwrap_or_default();
    Err(format!("kernel `{name}`: {}", sentence.to_string_lossy()))
}

/// Runs a kernel to its end. The error is a sentence of the emulation's.
pub(super) fn launch(queued: &Queued, seed: u64) -> Result<(), String> {
    let Queued { launch, arguments, .. } = queued;
    let own = emulation(queued, seed);
    told(queued.name, |name, error| {
        let (grid, arguments) = (launch.grid.as_ptr(), arguments.as_ptr().cast());
        // SAFETY: the arguments are of the size that the kernel takes (checked when it was queued), and what they point at is there (the promise of whoever
        // queued it); the sentence is cut off at its bound.
        unsafe { (own.launch)(name.as_ptr(), grid, launch.threads, launch.shared_bytes, arguments, error.as_mut_ptr().cast(), error.len()) }
    })
}

/// Begins a launch that follows another; `early` says that that one has not run, and lets a block of this one run as far as it comes without. The error
/// is a sentence of the emulation's.
pub(super) fn begin(queued: &Queued, early: bool, seed: u64) -> Result<Begun, String> {
    let Queued { launch, arguments, .. } = queued;
    let own = emulation(queued, seed);
    let mut begun = std::ptr::null_mut();
    told(queued.name, |name, error| {
        let (grid, arguments, early) = (launch.grid.as_ptr(), arguments.as_ptr().cast(), c_int::from(early));
        let (sentence, bytes) = (error.as_mut_ptr().cast(), error.len());
        // SAFETY: as above; the emulation has a copy of the arguments.
        unsafe { (own.begin)(name.as_ptr(), grid, launch.threads, launch.shared_bytes, arguments, early, &raw mut begun, sentence, bytes) }
    })?;
    let launch = NonNull::new(begun).ok_or("a launch has begun that is not there")?;
    Ok(Begun { launch, end: own.end })
}

/// Runs the rest of a launch, on the thread that began it.
pub(super) fn end(name: &str, begun: Begun) -> Result<(), String> {
    // SAFETY: it has begun and not ended; what its arguments point at is still there, as of a launch that has not begun.
    told(name, |_, error| unsafe { (begun.end)(begun.launch.as_ptr(), error.as_mut_ptr().cast(), error.len()) })
}
