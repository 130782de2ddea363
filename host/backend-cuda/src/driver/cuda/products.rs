//! Products by cublasLt, where its library is found.
//!
//! The library is looked for once, by the names that the system's loader knows (`ldconfig`, `LD_LIBRARY_PATH`), before the binding calls it, which would panic
//! where it is missing or lacks a function. Its heuristic is asked when plans are made and never again: descriptions, layouts and the algorithm are kept. The
//! binding's own layer is not used: it makes all of that anew for each call, and asks each time.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::LazyLock;

use cudarc::cublaslt::sys as lt;
use cudarc::driver::sys;

use super::CudaDriver;
use crate::driver::products::{PLANS_MAX, PLANS_OF_DRIVER_MAX, ProductOperands, ProductPlan, ProductShape, Products};
use crate::driver::{DeviceAddress, Done, Driver, Fault, Graph, GraphLaunch, Stream};

/// Functions of the library that are called.
const FUNCTIONS: &[&str] = &[
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtGetStatusString",
    "cublasLtGetVersion",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
];

/// The oldest library whose interface the binding is for.
const VERSION_LEAST: usize = 130_000;

/// `CUBLAS_OP_T` of `cublas_api.h`.
static TRANSPOSED: i32 = 1;

/// What the sums are multiplied by, and what stands: from the host, as both are by default.
static SCALES: [f32; 2] = [1.0, 0.0];

/// The library's version, or why there is none to use.
static LIBRARY: LazyLock<Result<usize, String>> = LazyLock::new(find);

fn find() -> Result<usize, String> {
    // SAFETY: loads the library if there is one. That runs what the library runs when it is loaded, as every use of it does.
    if !unsafe { lt::is_culib_present() } {
        return Err("the system finds no library libcublasLt.so".to_owned());
    }
    // SAFETY: the library was just loaded, so that it is not missing now.
    let library = unsafe { lt::culib() };
    let has = |function: &&&str| {
        // SAFETY: only whether it is there is asked; it is never called through this type.
        unsafe { library.get::<*const ()>(function.as_bytes()) }.is_ok()
    };
    if let Some(function) = FUNCTIONS.iter().find(|function| !has(function)) {
        return Err(format!("the library libcublasLt.so that the system finds has no function {function}"));
    }
    // SAFETY: the function is there.
    let version = unsafe { lt::cublasLtGetVersion() };
    if version < VERSION_LEAST {
        return Err(format!("the library libcublasLt.so that the system finds is {}; 13.0 or newer is needed", told(version)));
    }
    Ok(version)
}

/// As the library counts: 130002 is 13.0.
fn told(version: usize) -> String {
    format!("{}.{}", version / 10_000, version % 10_000 / 100)
}

fn done(status: lt::cublasStatus_t) -> Done {
    if status == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    // SAFETY: the function is there (`find`), and gives a string that stays.
    let said = unsafe { CStr::from_ptr(lt::cublasLtGetStatusString(status)) };
    Err(Fault::Refused(format!("cublasLt: {}", said.to_string_lossy())))
}

/// A layout of the library's, until it is dropped.
struct Layout(lt::cublasLtMatrixLayout_t);

impl Layout {
    /// Of a matrix whose rows lie one behind the other, which the library sees as one whose columns do.
    fn of(kind: lt::cudaDataType_t, rows: u32, columns: u32) -> Done<Self> {
        let mut layout = ptr::null_mut();
        // SAFETY: the function is there (`find`); the handle is ours.
        done(unsafe { lt::cublasLtMatrixLayoutCreate(&raw mut layout, kind, u64::from(columns), u64::from(rows), i64::from(columns)) })?;
        Ok(Self(layout))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: it was made by the library and is given back once. There is nobody to tell if that fails.
        let _ = unsafe { lt::cublasLtMatrixLayoutDestroy(self.0) };
    }
}

/// What the library chooses by, until it is dropped.
struct Preference(lt::cublasLtMatmulPreference_t);

impl Preference {
    fn of(workspace_bytes: usize) -> Done<Self> {
        let mut preference = ptr::null_mut();
        // SAFETY: the function is there (`find`); the handle is ours.
        done(unsafe { lt::cublasLtMatmulPreferenceCreate(&raw mut preference) })?;
        let preference = Self(preference);
        let most = workspace_bytes as u64;
        let asked = lt::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: a preference of the library's; the attribute is a number of 64 bits, which is copied.
        done(unsafe { lt::cublasLtMatmulPreferenceSetAttribute(preference.0, asked, (&raw const most).cast(), size_of::<u64>()) })?;
        Ok(preference)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: as of a layout.
        let _ = unsafe { lt::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}

/// A product of one shape.
struct Plan {
    x: Layout,
    weights: Layout,
    y: Layout,
    algorithm: lt::cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
}

impl Plan {
    fn new(shape: ProductShape, algorithm: &lt::cublasLtMatmulHeuristicResult_t) -> Done<Self> {
        let [x, weights, y] = layouts(shape)?;
        Ok(Self { x, weights, y, algorithm: algorithm.algo, workspace_bytes: algorithm.workspaceSize })
    }
}

fn layouts(ProductShape { rows, k, n }: ProductShape) -> Done<[Layout; 3]> {
    use lt::cudaDataType_t::{CUDA_R_16BF, CUDA_R_32F};
    Ok([Layout::of(CUDA_R_16BF, rows, k)?, Layout::of(CUDA_R_16BF, n, k)?, Layout::of(CUDA_R_32F, rows, n)?])
}

/// The library, opened for a device, until it is dropped; the device's context is the thread's then.
pub(super) struct Library {
    handle: lt::cublasLtHandle_t,
    /// Null until it is made.
    product: lt::cublasLtMatmulDesc_t,
    plans: Vec<Plan>,
    /// Where graphs are captured.
    stream: Stream,
}

impl Drop for Library {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: both were made by the library and are given back once. There is nobody to tell if that fails.
        unsafe {
            if !self.product.is_null() {
                let _ = lt::cublasLtMatmulDescDestroy(self.product);
            }
            let _ = lt::cublasLtDestroy(self.handle);
        }
    }
}

impl Library {
    /// The device's context is the thread's.
    fn open(stream: Stream) -> Done<Self> {
        let mut handle = ptr::null_mut();
        // SAFETY: the function is there (`find`); the handle is ours.
        done(unsafe { lt::cublasLtCreate(&raw mut handle) })?;
        let mut library = Self { handle, product: ptr::null_mut(), plans: Vec::new(), stream };
        let (sums, scales) = (lt::cublasComputeType_t::CUBLAS_COMPUTE_32F, lt::cudaDataType_t::CUDA_R_32F);
        // SAFETY: as above.
        done(unsafe { lt::cublasLtMatmulDescCreate(&raw mut library.product, sums, scales) })?;
        // The library sees every matrix's columns where its rows are: yᵀ = (Wᵀ)ᵀ·xᵀ.
        let weights = lt::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        // SAFETY: a description of the library's; the attribute is a number of 32 bits, which is copied.
        let set = unsafe { lt::cublasLtMatmulDescSetAttribute(library.product, weights, (&raw const TRANSPOSED).cast(), size_of::<i32>()) };
        done(set)?;
        Ok(library)
    }

    fn plans(&mut self, shape: ProductShape, workspace_bytes: usize) -> Done<Vec<ProductPlan>> {
        if shape.bytes().is_none() {
            return Err(Fault::Refused(format!("there is no product {shape:?}")));
        }
        if self.plans.len() + PLANS_MAX > PLANS_OF_DRIVER_MAX {
            return Err(Fault::Refused(format!("there are {} plans of products already", self.plans.len())));
        }
        let ([x, weights, y], preference) = (layouts(shape)?, Preference::of(workspace_bytes)?);
        let none = lt::cublasLtMatmulHeuristicResult_t {
            algo: lt::cublasLtMatmulAlgo_t { data: [0; 8] },
            workspaceSize: 0,
            state: lt::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
            wavesCount: 0.0,
            reserved: [0; 4],
        };
        let mut found = [none; PLANS_MAX];
        let mut count = 0;
        // SAFETY: handles of the library's; there is room for as many results as are asked for.
        let asked = unsafe {
            lt::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                self.product,
                weights.0,
                x.0,
                y.0,
                y.0,
                preference.0,
                PLANS_MAX as i32,
                found.as_mut_ptr(),
                &raw mut count,
            )
        };
        if asked == lt::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
            return Ok(Vec::new());
        }
        done(asked)?;
        let usable = |result: &&lt::cublasLtMatmulHeuristicResult_t| {
            result.state == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_bytes
        };
        let found = found.iter().take(usize::try_from(count).unwrap_or_default()).filter(usable);
        let found = found.map(|result| Plan::new(shape, result)).collect::<Done<Vec<_>>>()?;
        let first = self.plans.len();
        self.plans.extend(found);
        Ok((first..self.plans.len()).map(|number| ProductPlan(number as u32)).collect())
    }

    /// Queues a product on a stream, or adds it to what that one captures.
    ///
    /// # Safety
    /// As for [`Products::multiply`].
    unsafe fn multiply(&self, stream: sys::CUstream, plan: ProductPlan, operands: &ProductOperands) -> Done {
        let Some(plan) = self.plans.get(plan.0 as usize) else {
            return Err(Fault::Refused("a plan of another driver is named".to_owned()));
        };
        let at = |address: DeviceAddress| address.0 as *mut c_void;
        let [one, nothing] = SCALES.each_ref().map(|scale| ptr::from_ref(scale).cast::<c_void>());
        let y = at(operands.y);
        // SAFETY: handles of the library's, and a stream of the driver's, which are one type; the matrices and the workspace are as large as the plan has
        // them (the caller's promise). With a scale of zero what stands at y is not read.
        done(unsafe {
            lt::cublasLtMatmul(
                self.handle,
                self.product,
                one,
                at(operands.weights),
                plan.weights.0,
                at(operands.x),
                plan.x.0,
                nothing,
                y,
                plan.y.0,
                y,
                plan.y.0,
                &raw const plan.algorithm,
                at(operands.workspace),
                plan.workspace_bytes,
                stream.cast(),
            )
        })
    }
}

impl CudaDriver {
    /// The library, opened for this device when it is first asked for.
    pub(super) fn open_library(&mut self) -> Result<&mut dyn Products, String> {
        LIBRARY.clone()?;
        if self.products.is_none() {
            let opened = self.enter().and_then(|()| self.stream()).and_then(Library::open);
            self.products = Some(opened.map_err(|fault| format!("cublasLt cannot be used: {fault}"))?);
        }
        Ok(self)
    }

    fn opened(&mut self) -> Done<&mut Library> {
        self.enter()?;
        self.products.as_mut().ok_or_else(|| Fault::Refused("the library of products was not opened".to_owned()))
    }

    /// What a stream of its own captures of these.
    ///
    /// # Safety
    /// As for [`Products::graph`].
    unsafe fn captured(
        &mut self,
        before: &[GraphLaunch],
        (plan, operands): (ProductPlan, &ProductOperands),
        behind: &[GraphLaunch],
    ) -> Done<sys::CUgraph> {
        let own = self.opened()?.stream;
        let stream = self.stream_of(own)?;
        // Relaxed: calls of other threads are none of its business, and go on.
        // SAFETY: a stream of this driver, which nothing else is queued on.
        let began = unsafe { sys::cuStreamBeginCapture_v2(stream, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) };
        self.call(began)?;
        let queue = |driver: &mut Self, launches: &[GraphLaunch]| -> Done {
            for GraphLaunch { launch, arguments } in launches {
                if launch.cooperative {
                    return Err(Fault::Refused("a launch of a graph is cooperative".to_owned()));
                }
                // SAFETY: the caller's promise.
                unsafe { driver.launch(own, launch, arguments)? };
            }
            Ok(())
        };
        let queued = queue(self, before)
            // SAFETY: the caller's promise.
            .and_then(|()| unsafe { self.opened()?.multiply(stream, plan, operands) })
            .and_then(|()| queue(self, behind));
        let mut graph = ptr::null_mut();
        // Whatever became of it: a stream that captures takes no work.
        // SAFETY: it captures; the handle is ours.
        let ended = unsafe { sys::cuStreamEndCapture(stream, &raw mut graph) };
        let ended = self.call(ended);
        if let Err(fault) = queued {
            if !graph.is_null() {
                // SAFETY: it was just made, and is given back once. That it goes is not what went wrong.
                let _ = unsafe { sys::cuGraphDestroy(graph) };
            }
            return Err(fault);
        }
        ended.map(|()| graph)
    }
}

impl Products for CudaDriver {
    fn library(&self) -> String {
        format!("cublasLt {}", LIBRARY.as_ref().copied().map_or_else(|_| "?".to_owned(), told))
    }

    fn plans(&mut self, shape: ProductShape, workspace_bytes: usize) -> Done<Vec<ProductPlan>> {
        self.opened()?.plans(shape, workspace_bytes)
    }

    unsafe fn multiply(&mut self, stream: Stream, plan: ProductPlan, operands: &ProductOperands) -> Done {
        let stream = self.stream_of(stream)?;
        // SAFETY: the caller's promise.
        unsafe { self.opened()?.multiply(stream, plan, operands) }
    }

    unsafe fn graph(&mut self, before: &[GraphLaunch], product: (ProductPlan, &ProductOperands), behind: &[GraphLaunch]) -> Done<Graph> {
        // SAFETY: the caller's promise.
        let graph = unsafe { self.captured(before, product, behind)? };
        let own = self.opened()?.stream;
        let stream = self.stream_of(own)?;
        let graph = self.instantiated(stream, graph)?;
        // It is launched on streams that know nothing of this one.
        self.settle(&[stream])?;
        Ok(graph)
    }
}
