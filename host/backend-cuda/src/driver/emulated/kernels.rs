//! The kernels' own sources, compiled for the CPU (`kernels/emulation`, by this crate's `build.rs`).

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use super::compile::Library;
use crate::driver::Launch;

/// Bytes of a sentence that the emulation may write.
const ERROR_BYTES: usize = 1024;

/// `emulate_launch` of an emulation.
pub(super) type Launcher = unsafe extern "C" fn(*const c_char, *const u32, u32, u32, *const c_void, *mut c_char, usize) -> c_int;
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
    fn emulate_size_of(kernel: *const c_char) -> c_int;
    fn emulate_is_cooperative(kernel: *const c_char) -> c_int;
    fn emulate_cluster(kernel: *const c_char) -> u32;
    fn emulate_seed(seed: u64);
}

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

/// How many blocks a kernel's clusters have; 1 where it has none.
pub(super) fn cluster(name: &str) -> u32 {
    // SAFETY: a string that ends in zero, read only.
    CString::new(name).map_or(1, |name| unsafe { emulate_cluster(name.as_ptr()) })
}

/// From now on this thread's launches let their blocks' threads take turns in the order of this seed.
pub(super) fn seed(seed: u64) {
    // SAFETY: it changes what belongs to this thread alone.
    unsafe { emulate_seed(seed) };
}

/// Runs a kernel to its end: one of this program's own, or one that was compiled since, with an order of its threads that is drawn anew. The error is a
/// sentence of the emulation's.
pub(super) fn launch(name: &str, compiled: Option<(Library, u64)>, launch: &Launch, arguments: &[u8]) -> Result<(), String> {
    let launcher: Launcher = match compiled {
        Some((library, seed)) => {
            // SAFETY: it changes what belongs to this thread alone.
            unsafe { (library.seed)(seed) };
            library.launch
        }
        None => emulate_launch,
    };
    let name_c = CString::new(name).map_err(|_| "a kernel's name holds a zero".to_owned())?;
    let mut error = [0_u8; ERROR_BYTES];
    // SAFETY: the arguments are of the size that the kernel takes (checked when it was queued), and what they point at is there (the promise of whoever
    // queued it); the sentence is cut off at its bound.
    let code = unsafe {
        launcher(
            name_c.as_ptr(),
            launch.grid.as_ptr(),
            launch.threads,
            launch.shared_bytes,
            arguments.as_ptr().cast(),
            error.as_mut_ptr().cast(),
            error.len(),
        )
    };
    if code == 0 {
        return Ok(());
    }
    let sentence = CStr::from_bytes_until_nul(&error).unwrap_or_default();
    Err(format!("kernel `{name}`: {}", sentence.to_string_lossy()))
}
