//! Memory of the host that a device sees, and matrices in its own as kernels see them.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{CudaContext, DriverError, sys};

use crate::abi::TENSOR_BOX;
use crate::driver::{DeviceAddress, Matrix, Pinned};

/// Gives the memory back when the last handle goes, unless it stays.
struct Owner {
    context: Arc<CudaContext>,
    stays: Arc<AtomicBool>,
    pointer: NonNull<u8>,
}

// SAFETY: the pointer is to memory that only the handle touches; giving it back may be done from any thread.
unsafe impl Send for Owner {}
// SAFETY: as above; nothing is done through a shared reference.
unsafe impl Sync for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        // What a lost device may write yet must be there, and giving it back might wait for ever.
        if self.stays.load(Ordering::Acquire) {
            return;
        }
        // There is nobody to tell if it fails.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: it came from `cuMemHostAlloc` and is freed once.
            let _ = unsafe { sys::cuMemFreeHost(self.pointer.as_ptr().cast()) };
        }
    }
}

/// Pinned memory, zeroed. Not write-combined: the host reads what the device puts there, and reading that would be slow.
///
/// It is not given back if the driver says by then that it stays.
pub(super) fn pinned((context, stays): (&Arc<CudaContext>, &Arc<AtomicBool>), bytes: usize) -> Result<Pinned, DriverError> {
    let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    let mut pointer = std::ptr::null_mut();
    // SAFETY: the context is bound by the caller; the pointer is ours.
    unsafe { sys::cuMemHostAlloc(&raw mut pointer, bytes.max(1), flags) }.result()?;
    let Some(pointer) = NonNull::new(pointer.cast::<u8>()) else {
        return Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    };
    let owner = Arc::new(Owner { context: Arc::clone(context), stays: Arc::clone(stays), pointer });
    let mut address = 0;
    // SAFETY: memory that was just allocated with `DEVICEMAP`.
    unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut address, pointer.as_ptr().cast(), 0) }.result()?;
    // SAFETY: that many bytes were allocated, at a page's beginning, and nobody else has them; the owner keeps them.
    Ok(unsafe {
        pointer.as_ptr().write_bytes(0, bytes);
        Pinned::new(pointer, bytes, DeviceAddress(address), owner)
    })
}

/// A matrix as kernels are given it: in boxes, swizzled by 128 bytes, of 16 bits of which the device looks at none.
pub(super) fn tensor_map(matrix: &Matrix) -> Result<[u64; 16], DriverError> {
    let Matrix { at, columns, rows, stride } = *matrix;
    let (sizes, strides, boxes, steps) = ([u64::from(columns), u64::from(rows)], [u64::from(stride)], [TENSOR_BOX; 2], [1, 1]);
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    // SAFETY: two sizes, a stride less than that, two of a box and two of its steps; the matrix is described, not read.
    let code = unsafe {
        sys::cuTensorMapEncodeTiled(
            &raw mut map,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
            2,
            at.0 as *mut c_void,
            sizes.as_ptr(),
            strides.as_ptr(),
            boxes.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    code.result()?;
    Ok(map.opaque)
}
