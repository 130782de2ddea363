//! The driver's errors: which of them a device survives.

use cudarc::driver::{DriverError, sys};

use crate::driver::Fault;

/// An error in the driver's words.
pub(super) fn told(error: DriverError) -> String {
    let word = |text: Result<&std::ffi::CStr, DriverError>| text.map(|text| text.to_string_lossy().into_owned()).ok();
    match (word(error.error_string()), word(error.error_name())) {
        (Some(sentence), Some(name)) => format!("{sentence} ({name})"),
        _ => format!("error {}", error.0 as u32),
    }
}

/// What became of the device. Of errors that are not listed the worst is believed: a worker that is taken out needlessly costs less than results that
/// are wrong.
pub(super) fn fault(error: DriverError) -> Fault {
    let cause = told(error);
    if survives(error.0) { Fault::Refused(cause) } else { Fault::Lost(cause) }
}

fn survives(code: sys::CUresult) -> bool {
    use sys::CUresult as Code;
    matches!(
        code,
        Code::CUDA_ERROR_INVALID_VALUE
            | Code::CUDA_ERROR_OUT_OF_MEMORY
            | Code::CUDA_ERROR_INVALID_DEVICE
            | Code::CUDA_ERROR_INVALID_IMAGE
            | Code::CUDA_ERROR_INVALID_PTX
            | Code::CUDA_ERROR_NO_BINARY_FOR_GPU
            | Code::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            | Code::CUDA_ERROR_JIT_COMPILER_NOT_FOUND
            | Code::CUDA_ERROR_JIT_COMPILATION_DISABLED
            | Code::CUDA_ERROR_INVALID_SOURCE
            | Code::CUDA_ERROR_INVALID_HANDLE
            | Code::CUDA_ERROR_NOT_FOUND
            | Code::CUDA_ERROR_NOT_READY
            | Code::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
            | Code::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
            | Code::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
            | Code::CUDA_ERROR_NOT_PERMITTED
            | Code::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
            | Code::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
            | Code::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
            | Code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
            | Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            | Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION
            | Code::CUDA_ERROR_STREAM_CAPTURE_MERGE
            | Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED
            | Code::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
            | Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            | Code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
            | Code::CUDA_ERROR_TOO_MANY_PEERS
            | Code::CUDA_ERROR_NOT_SUPPORTED
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_poisons_a_context_is_a_lost_device() {
        use sys::CUresult as Code;
        for code in
            [Code::CUDA_ERROR_ILLEGAL_ADDRESS, Code::CUDA_ERROR_ECC_UNCORRECTABLE, Code::CUDA_ERROR_LAUNCH_FAILED, Code::CUDA_ERROR_UNKNOWN]
        {
            assert!(!survives(code), "{code:?}");
        }
        assert!(survives(Code::CUDA_ERROR_OUT_OF_MEMORY) && survives(Code::CUDA_ERROR_INVALID_VALUE));
    }

    #[test]
    fn a_capture_or_a_peer_that_is_refused_loses_no_device() {
        use sys::CUresult as Code;
        for code in [
            Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
            Code::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
            Code::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,
            Code::CUDA_ERROR_TOO_MANY_PEERS,
        ] {
            assert!(survives(code), "{code:?}");
        }
    }
}
