//! Kernels: those of the images that are embedded, by name, and those that are compiled while the program runs.

use std::ffi::{CString, c_void};

use cudarc::driver::{result, sys};

use super::{CudaDriver, compile};
use crate::abi::{Arguments, CompiledGroupArguments};
use crate::driver::compiler::refused;
use crate::driver::{Done, Fault, Kernel};

/// A kernel, and what it takes.
pub(super) struct Loaded {
    pub(super) name: &'static str,
    pub(super) function: sys::CUfunction,
    pub(super) argument_bytes: usize,
    /// The module that is its alone.
    own: Option<sys::CUmodule>,
}

impl Loaded {
    /// In the place of one that was given back: no launch has its arguments.
    const GONE: Self = Self { name: "", function: std::ptr::null_mut(), argument_bytes: 0, own: None };
}

impl CudaDriver {
    pub(super) fn embedded(&mut self, name: &'static str) -> Done<Kernel> {
        self.enter()?;
        if let Some(index) = self.kernels.iter().position(|known| known.name == name && known.own.is_none()) {
            return Ok(Kernel(index as u32));
        }
        let loaded = self.function(self.module, name)?;
        Ok(self.add(loaded))
    }

    /// Machine code of a kernel's text for this device.
    ///
    /// # Errors
    /// What the compiler said, or why there is none.
    pub fn machine_code(&self, source: &str) -> Result<Vec<u8>, String> {
        compile::code(source, self.facts.capability).map(|code| code.to_vec())
    }

    pub(super) fn of_text(&mut self, source: &str) -> Done<Option<Kernel>> {
        self.enter()?;
        let code = match compile::code(source, self.facts.capability) {
            Ok(code) => code,
            Err(said) => {
                if compile::compiler(self.facts.capability).is_ok() {
                    refused(&said);
                }
                return Ok(None);
            }
        };
        let mut module = std::ptr::null_mut();
        // SAFETY: machine code, which says itself how long it is.
        let loaded = unsafe { sys::cuModuleLoadData(&raw mut module, code.as_ptr().cast::<c_void>()) };
        let function = self.call(loaded).and_then(|()| self.function(module, CompiledGroupArguments::KERNEL));
        if function.is_err() && !module.is_null() {
            // SAFETY: it was loaded, and nothing of it is used. That it goes is not what went wrong.
            let _ = unsafe { sys::cuModuleUnload(module) };
        }
        match function {
            Ok(loaded) => Ok(Some(self.add(Loaded { own: Some(module), ..loaded }))),
            Err(Fault::Refused(said)) => {
                refused(&format!("the driver does not take what was compiled: {said}"));
                Ok(None)
            }
            Err(fault) => Err(fault),
        }
    }

    pub(super) fn unload(&mut self, kernel: Kernel) -> Done {
        self.enter()?;
        let Some(module) = self.kernels.get(kernel.0 as usize).and_then(|loaded| loaded.own) else {
            return Err(Fault::Refused("a kernel is released that was not compiled".to_owned()));
        };
        self.settle_all()?;
        self.kernels[kernel.0 as usize] = Loaded::GONE;
        // SAFETY: a module of this driver, unloaded once, whose kernel nothing that is queued needs.
        let code = unsafe { sys::cuModuleUnload(module) };
        self.call(code)
    }

    /// A kernel that takes so many bytes of arguments.
    pub(super) fn taking(&self, kernel: Kernel, arguments: &[u8]) -> Done<sys::CUfunction> {
        let Some(kernel) = self.kernels.get(kernel.0 as usize) else {
            return Err(Fault::Refused("a kernel of another driver is launched".to_owned()));
        };
        if arguments.len() != kernel.argument_bytes {
            let (name, takes) = (kernel.name, kernel.argument_bytes);
            return Err(Fault::Refused(format!("kernel `{name}`: takes {takes} bytes of arguments, got {}", arguments.len())));
        }
        Ok(kernel.function)
    }

    /// How many blocks run at once, if the device can be asked to run them so.
    pub(super) fn resident(&mut self, kernel: Kernel, threads: u32, shared_bytes: usize) -> Done<u32> {
        self.enter()?;
        let Some(kernel) = self.kernels.get(kernel.0 as usize) else {
            return Err(Fault::Refused("a kernel of another driver is named".to_owned()));
        };
        if !self.cooperates {
            return Ok(0);
        }
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: a function of this driver's module.
        let blocks = unsafe { result::occupancy::max_active_block_per_multiprocessor(kernel.function, threads, shared_bytes) };
        let blocks = self.done(blocks)?;
        Ok(u32::try_from(blocks).unwrap_or_default().saturating_mul(self.facts.multiprocessors))
    }

    /// Modules that are a kernel's alone.
    pub(super) fn own_modules(&self) -> impl Iterator<Item = sys::CUmodule> {
        self.kernels.iter().filter_map(|loaded| loaded.own)
    }

    fn add(&mut self, loaded: Loaded) -> Kernel {
        let place = self.kernels.iter().position(|known| known.function.is_null());
        let place = place.unwrap_or(self.kernels.len());
        if place == self.kernels.len() {
            self.kernels.push(loaded);
        } else {
            self.kernels[place] = loaded;
        }
        Kernel(place as u32)
    }

    fn function(&mut self, module: sys::CUmodule, name: &'static str) -> Done<Loaded> {
        let text = CString::new(name).map_err(|_| Fault::Refused("a kernel's name holds a zero".to_owned()))?;
        let mut function = std::ptr::null_mut();
        // SAFETY: a module of this driver, and a string that ends in zero.
        let code = unsafe { sys::cuModuleGetFunction(&raw mut function, module, text.as_ptr()) };
        if code == sys::CUresult::CUDA_ERROR_NOT_FOUND {
            return Err(Fault::Refused(format!("there is no kernel `{name}`")));
        }
        self.call(code)?;
        let (mut offset, mut argument_bytes) = (0_usize, 0_usize);
        // SAFETY: a function of this driver's module; both are integers of ours.
        let code = unsafe { sys::cuFuncGetParamInfo(function, 0, &raw mut offset, &raw mut argument_bytes) };
        self.call(code)?;
        // SAFETY: a function of this driver's module.
        let own =
            unsafe { result::function::get_function_attribute(function, sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) };
        let own = self.done(own)?;
        // Without this a launch may ask for 48 KiB only.
        let more = i32::try_from(self.facts.shared_bytes_max).unwrap_or(i32::MAX).saturating_sub(own);
        let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a function of this driver's module.
        let set = unsafe { result::function::set_function_attribute(function, which, more) };
        self.done(set)?;
        Ok(Loaded { name, function, argument_bytes, own: None })
    }
}
