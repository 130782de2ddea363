//! Whether there is a device, found out without a panic.
//!
//! The binding panics if CUDA's library, or one function of it, is missing. So everything that may
//! be called is looked for before anything is called. A missing or old driver becomes one sentence,
//! and other workers go on.

use cudarc::driver::{DriverError, result, sys};

use super::fault::told;
use crate::driver::Facts;

/// The oldest driver whose interface the kernels were compiled for: CUDA 13.0, which came with driver 580.
const VERSION_LEAST: u32 = 13_000;

/// What this crate calls, and what the binding calls for it. A library that lacks one of them is refused before it is called.
const FUNCTIONS: &[&str] = &[
    "cuCtxEnablePeerAccess",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime_v2",
    "cuEventRecord",
    "cuFuncGetAttribute",
    "cuFuncGetParamInfo",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphAddDependencies_v2",
    "cuGraphAddKernelNode_v2",
    "cuGraphCreate",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuInit",
    "cuLaunchCooperativeKernel",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamWriteValue64_v2",
    "cuTensorMapEncodeTiled",
];

/// Why there is no device to work with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absent {
    /// No library.
    #[error("there is no NVIDIA driver: the system finds no library libcuda.so.1")]
    NoDriver,
    /// A library without a device.
    #[error("the NVIDIA driver finds no GPU that this process may use")]
    NoDevice,
    /// The library of a toolkit, against which one links where there is no driver.
    #[error("the library libcuda.so that the system finds is a stub for building, not the NVIDIA driver")]
    Stub,
    /// Older than what the kernels were compiled for.
    #[error("the NVIDIA driver is for CUDA {}.{}; CUDA 13.0 (driver 580) or newer is needed", version / 1000, version % 1000 / 10)]
    TooOld {
        /// As its interface counts.
        version: u32,
    },
    /// A function is missing.
    #[error("the NVIDIA driver has no function {function}: CUDA 13.0 (driver 580) or newer is needed")]
    Incomplete {
        /// Which.
        function: &'static str,
    },
    /// In the driver's words.
    #[error("the NVIDIA driver does not start: {cause}")]
    Failed {
        /// Why.
        cause: String,
    },
}

/// The devices that this process may use, in the driver's order. Costs no memory on any of them.
///
/// # Errors
/// If there is none, in one sentence that says what is missing.
pub fn devices() -> Result<Vec<Facts>, Absent> {
    let version = start()?;
    let failed = |error: DriverError| Absent::Failed { cause: told(error) };
    let count = result::device::get_count().map_err(failed)?;
    if count <= 0 {
        return Err(Absent::NoDevice);
    }
    (0..count).map(|ordinal| facts(ordinal, version).map_err(failed)).collect()
}

/// Starts the driver; gives its version. As often as one likes.
fn start() -> Result<u32, Absent> {
    // SAFETY: loads the library if there is one. That runs what the library runs when it is loaded, as every use of it does.
    if !unsafe { sys::is_culib_present() } {
        return Err(Absent::NoDriver);
    }
    // SAFETY: the library was just loaded, so that it is not missing now.
    let library = unsafe { sys::culib() };
    // What tells the version first: of a driver that is too old this is the better sentence, and it lacks functions as well.
    let has = |function: &str| {
        // SAFETY: only whether it is there is asked; it is never called through this type.
        unsafe { library.get::<*const ()>(function.as_bytes()) }.is_ok()
    };
    if let Some(function) =
        ["cuDriverGetVersion", "cuInit", "cuGetErrorName", "cuGetErrorString"].into_iter().find(|function| !has(function))
    {
        return Err(Absent::Incomplete { function });
    }
    let mut version = 0;
    // SAFETY: the function is there, and may be called before all others; the pointer is to an integer of ours.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().map_err(not_started)?;
    let version = u32::try_from(version).unwrap_or_default();
    if version < VERSION_LEAST {
        return Err(Absent::TooOld { version });
    }
    if let Some(function) = FUNCTIONS.iter().find(|function| !has(function)) {
        return Err(Absent::Incomplete { function });
    }
    result::init().map_err(not_started)?;
    Ok(version)
}

fn not_started(error: DriverError) -> Absent {
    match error.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => Absent::NoDevice,
        sys::CUresult::CUDA_ERROR_STUB_LIBRARY => Absent::Stub,
        _ => Absent::Failed { cause: told(error) },
    }
}

fn facts(ordinal: i32, driver_version: u32) -> Result<Facts, DriverError> {
    use sys::CUdevice_attribute as Attribute;
    let device = result::device::get(ordinal)?;
    let attribute = |which| {
        // SAFETY: the device was just given by the driver.
        unsafe { result::device::get_attribute(device, which) }.map(|value| u32::try_from(value).unwrap_or_default())
    };
    Ok(Facts {
        name: result::device::get_name(device)?,
        ordinal: ordinal.unsigned_abs(),
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        // SAFETY: the device was just given by the driver.
        memory_bytes: unsafe { result::device::total_mem(device) }? as u64,
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_bytes_max: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        uuid: written(&result::device::get_uuid(device)?.bytes.map(|byte| byte as u8)),
        driver_version,
    })
}

/// As `nvidia-smi` writes it.
fn written(uuid: &[u8; 16]) -> String {
    let part = |range: std::ops::Range<usize>| uuid[range].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("GPU-{}-{}-{}-{}-{}", part(0..4), part(4..6), part(6..8), part(8..10), part(10..16))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Names in a text that come behind `before`.
    fn names<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
        text.split(before).skip(1).filter_map(|rest| rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next())
    }

    /// The binding panics in a function that a library lacks. What this crate calls by name is looked for, and the library that stands in for the driver's in
    /// tests has just what is: so tests find what is called otherwise.
    #[test]
    fn every_function_that_is_called_is_looked_for() {
        let stands_in = names(include_str!("../../../tests/fake/libcuda.cpp"), "\nint cu").map(|name| format!("cu{name}"));
        assert_eq!(stands_in.collect::<BTreeSet<_>>(), FUNCTIONS.iter().map(|name| (*name).to_owned()).collect());
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/driver/cuda");
        let files = std::fs::read_dir(&folder).expect("this crate's sources").map(|file| file.expect("a file").path());
        for file in files.chain([folder.with_extension("rs")]) {
            let text = std::fs::read_to_string(&file).expect("a source");
            for name in names(&text, "sys::cu").filter(|name| name.starts_with(|letter: char| letter.is_ascii_uppercase())) {
                assert!(FUNCTIONS.contains(&format!("cu{name}").as_str()), "{}: cu{name} is called and not looked for", file.display());
            }
        }
    }

    #[test]
    fn a_device_is_written_as_others_write_it() {
        let uuid = [0x6f, 0xbe, 0x60, 0x73, 0x16, 0x1e, 0xd2, 0xbf, 0xde, 0x82, 0x5e, 0x8e, 0x2d, 0x33, 0xe9, 0x01];
        assert_eq!(written(&uuid), "GPU-6fbe6073-161e-d2bf-de82-5e8e2d33e901");
    }

    #[test]
    fn versions_are_written_as_people_know_them() {
        assert!(Absent::TooOld { version: 12_040 }.to_string().starts_with("the NVIDIA driver is for CUDA 12.4; CUDA 13.0"));
    }
}
