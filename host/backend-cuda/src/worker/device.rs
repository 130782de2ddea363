//! A device as the worker uses it: a stream of work, beside it one for large uploads and one for large downloads, the kernels, and what becomes of faults.

use std::ops::Range;
use std::sync::atomic::Ordering;

use cellwright_backend::DeviceLost;

use super::options::CudaOptions;
use super::recurrent::LstmKernels;
use super::watch::{Patience, Watch};
use super::wide::WideKernels;
use crate::abi::{self, Arguments, PRODUCT_COLUMNS, PRODUCT_THREADS, PRODUCT_TILES, Plain, bytes_of, product_shared};
use crate::driver::guarded::{GuardedDriver, Guards};
use crate::driver::{DeviceAddress, Done, Driver, Event, Fault, GraphLaunch, Kernel, Launch, Pinned, Stream};
use crate::plan::Arithmetic;

/// The kernels, loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels {
    pub(super) gather: Kernel,
    pub(super) finish: Kernel,
    pub(super) begin_words: Kernel,
    pub(super) group: Kernel,
    pub(super) best: Kernel,
    pub(super) span: Kernel,
    pub(super) attention: Kernel,
    pub(super) span_check: Kernel,
    in_f32: Products,
    in_tf32: Products,
    in_bf16: Products,
    in_f16: Products,
    /// None on a device that lacks them.
    pub(super) lstm: Option<LstmKernels>,
    /// Likewise: both are for one architecture.
    pub(super) wide: Option<WideKernels>,
}

/// Those of one arithmetic, by the rows of their tiles.
#[derive(Clone, Copy, Debug)]
struct Products {
    /// Which leave all sums.
    all: [Kernel; 3],
    /// Which keep the best of each panel.
    best: [Kernel; 3],
}

fn products(driver: &mut dyn Driver, all: [&'static str; 3], best: [&'static str; 3]) -> Done<Products> {
    let mut loaded = |[first, second, third]: [&'static str; 3]| Ok([driver.kernel(first)?, driver.kernel(second)?, driver.kernel(third)?]);
    Ok(Products { all: loaded(all)?, best: loaded(best)? })
}

pub(super) struct Device {
    pub(super) driver: Box<dyn Driver>,
    /// Where kernels run.
    pub(super) stream: Stream,
    /// Where what is large comes and goes, beside what runs; small tasks do so on its stream.
    uploads: (Stream, Event),
    downloads: (Stream, Event),
    /// Of what is downloaded, where the steps' stream waits for it.
    downloaded: Event,
    pub(super) kernels: Kernels,
    /// Whether products of 32-bit floats are in tf32.
    pub(super) tf32: bool,
    pub(super) name: String,
    /// Holds the number of the newest segment that is done.
    signal: Pinned,
    /// The number of the newest segment that was queued,
    pub(super) queued: u64,
    /// and of the newest one whose signal is on the stream of downloads, unless the steps' stream has waited for that.
    newest_beside: u64,
    /// Why it is lost.
    lost: Option<String>,
    pub(super) patience: Patience,
    /// What was looked for last and was not there.
    pub(super) watch: Option<Watch>,
    /// Around everything on the device, if that is asked for.
    guards: Option<Guards>,
    /// Launches that are to be a graph, while they are collected.
    collected: Option<Vec<GraphLaunch>>,
}

impl Device {
    pub(super) fn new(driver: Box<dyn Driver>, options: &CudaOptions) -> Done<Self> {
        if !options.debug {
            return Self::of(driver, options, None);
        }
        let (driver, guards) = GuardedDriver::new(driver)?;
        Self::of(Box::new(driver), options, Some(guards))
    }

    fn of(mut driver: Box<dyn Driver>, options: &CudaOptions, guards: Option<Guards>) -> Done<Self> {
        driver.wait_at_most(options.wait_max);
        let stream = driver.stream()?;
        let uploads = (driver.stream()?, driver.event()?);
        let downloads = (driver.stream()?, driver.event()?);
        let downloaded = driver.event()?;
        let lstm = LstmKernels::of(&mut *driver)?;
        let kernels = Kernels {
            gather: driver.kernel(abi::GatherArguments::KERNEL)?,
            finish: driver.kernel(abi::FinishArguments::KERNEL)?,
            begin_words: driver.kernel(abi::WordsArguments::KERNEL)?,
            group: driver.kernel(abi::GroupArguments::KERNEL)?,
            best: driver.kernel(abi::BestArguments::KERNEL)?,
            span: driver.kernel(abi::SpanArguments::KERNEL)?,
            attention: driver.kernel(abi::AttentionArguments::KERNEL)?,
            span_check: driver.kernel(abi::SpanCheckArguments::KERNEL)?,
            in_f32: products(&mut *driver, abi::PRODUCTS_F32, abi::BEST_F32)?,
            in_tf32: products(&mut *driver, abi::PRODUCTS_TF32, abi::BEST_TF32)?,
            in_bf16: products(&mut *driver, abi::PRODUCTS_BF16, abi::BEST_BF16)?,
            in_f16: products(&mut *driver, abi::PRODUCTS_F16, abi::BEST_F16)?,
            lstm,
            wide: lstm.map(|_| WideKernels::of(&mut *driver)).transpose()?,
        };
        let signal = driver.pinned(size_of::<u64>())?;
        let facts = driver.facts();
        let name = format!("cuda {}: {}", facts.ordinal, facts.name);
        match driver.compiler() {
            Ok(compiler) => tracing::info!("{name}: groups of operations are compiled by {}", compiler.name()),
            Err(why) => tracing::info!("{name}: groups of operations are interpreted, because {why}"),
        }
        let (patience, tf32) = (options.patience(), options.tf32);
        Ok(Self {
            driver,
            stream,
            uploads,
            downloads,
            kernels,
            tf32,
            name,
            signal,
            queued: 0,
            newest_beside: 0,
            downloaded,
            lost: None,
            patience,
            watch: None,
            guards,
            collected: None,
        })
    }

    /// Says what an allocation is, for whoever learns that something was written beside it.
    pub(super) fn call(&self, allocation: DeviceAddress, name: &str) {
        if let Some(guards) = &self.guards {
            guards.name(allocation, name);
        }
    }

    /// Whether somebody looks whether anything was written beside its memory.
    pub(super) const fn is_guarded(&self) -> bool {
        self.guards.is_some()
    }

    /// Whether nothing was written beside its memory until that was done, as far as anybody looks.
    pub(super) fn is_intact(&mut self, done: std::fmt::Arguments<'_>) -> Result<(), DeviceLost> {
        match self.guards.as_ref().and_then(Guards::broken) {
            Some(broken) => Err(self.lose(format!("{broken}, which was seen after {done}"))),
            None => Ok(()),
        }
    }

    /// What is said of a device that is lost.
    pub(super) fn is_there(&self) -> Result<(), DeviceLost> {
        match &self.lost {
            Some(cause) => Err(DeviceLost { device: self.name.clone(), cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// Nothing that a task needs may fail: if it does, the device is as good as lost.
    pub(super) fn lose(&mut self, cause: String) -> DeviceLost {
        let cause = self.lost.get_or_insert(cause).clone();
        DeviceLost { device: self.name.clone(), cause }
    }

    /// The same of a driver's call.
    pub(super) fn held<T>(&mut self, done: Done<T>) -> Result<T, DeviceLost> {
        done.map_err(|fault: Fault| self.lose(fault.to_string()))
    }

    /// Queues a kernel, or collects it.
    ///
    /// # Safety
    /// As for [`Driver::launch`], and the kernel takes that structure.
    pub(super) unsafe fn launch<A: Plain>(&mut self, launch: &Launch, arguments: &A) -> Done {
        if let Some(collected) = &mut self.collected {
            collected.push(GraphLaunch { launch: *launch, arguments: bytes_of(arguments).to_vec() });
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.driver.launch(self.stream, launch, bytes_of(arguments)) }
    }

    /// Has what `queue` queues run on another stream.
    pub(super) fn beside<T>(&mut self, stream: Stream, queue: impl FnOnce(&mut Self) -> Done<T>) -> Done<T> {
        let own = std::mem::replace(&mut self.stream, stream);
        let done = queue(self);
        self.stream = own;
        done
    }

    /// What `queue` would queue, which is not queued.
    pub(super) fn collect(&mut self, queue: impl FnOnce(&mut Self) -> Done) -> Done<Vec<GraphLaunch>> {
        self.collected = Some(Vec::new());
        let done = queue(self);
        let collected = self.collected.take().unwrap_or_default();
        done.map(|()| collected)
    }

    /// How a product of so many rows and columns is launched, whose sums are all left or the best of each panel. No bit of it depends on that.
    ///
    /// # Errors
    /// If it is one by warpgroups and the device lacks these kernels, for which no plan was made then.
    pub(super) fn product(&self, arithmetic: Arithmetic, is_best: bool, (rows, n): (u32, u32)) -> Done<Launch> {
        let multiprocessors = self.driver.facts().multiprocessors;
        if arithmetic.is_wide() {
            let kernels = self.kernels.wide.ok_or_else(|| Fault::Refused("it has no kernels for products by warpgroups".to_owned()))?;
            return Ok(kernels.launch((arithmetic.is_f16(), is_best), (rows, n), multiprocessors));
        }
        let columns = n.div_ceil(PRODUCT_COLUMNS);
        // The largest tile that is mostly full and leaves work for everyone: larger ones read less for as much work.
        let is_worth_it = |tile: u32| rows > tile / 2 && columns * rows.div_ceil(tile) >= multiprocessors;
        let number = (0..PRODUCT_TILES.len()).rev().find(|number| is_worth_it(PRODUCT_TILES[*number])).unwrap_or_default();
        let tile = PRODUCT_TILES[number];
        let kernels = match arithmetic {
            Arithmetic::F32 => self.kernels.in_f32,
            Arithmetic::Tf32 => self.kernels.in_tf32,
            Arithmetic::Bf16 | Arithmetic::WideBf16 => self.kernels.in_bf16,
            Arithmetic::F16 | Arithmetic::WideF16 => self.kernels.in_f16,
        };
        Ok(Launch {
            kernel: if is_best { kernels.best } else { kernels.all }[number],
            grid: [columns, rows.div_ceil(tile), 1],
            threads: PRODUCT_THREADS,
            shared_bytes: product_shared(tile, arithmetic.is_of_halves()),
            cooperative: false,
        })
    }

    /// Queues an upload, beside what runs already and before what will run.
    pub(super) fn upload(&mut self, (from, offset): (&Pinned, usize), to: DeviceAddress, bytes: usize) -> Done {
        let (stream, uploaded) = self.uploads;
        self.driver.upload(stream, from, offset, to, bytes)?;
        self.driver.record(uploaded, stream)?;
        self.driver.wait(self.stream, uploaded)
    }

    /// Queues an upload behind what was queued to run.
    pub(super) fn upload_behind(&mut self, (from, offset): (&Pinned, usize), to: DeviceAddress, bytes: usize) -> Done {
        self.driver.upload(self.stream, from, offset, to, bytes)
    }

    /// Queues downloads to the same places of pinned memory behind what was queued to run, beside what will run, and the signal that they are done: its number.
    pub(super) fn download(&mut self, from: DeviceAddress, to: &Pinned, ranges: impl ExactSizeIterator<Item = Range<usize>>) -> Done<u64> {
        if ranges.len() == 0 {
            return self.queue_signal();
        }
        let stream = self.wait_for_run()?;
        for range in ranges {
            self.driver.download(stream, from.plus(range.start), to, range.start, range.len())?;
        }
        self.newest_beside = self.queued + 1;
        self.signal(stream)
    }

    /// Queues the signal that everything before it has run: its number.
    pub(super) fn queue_signal(&mut self) -> Done<u64> {
        // Numbers are seen in their order: behind downloads that are on their way, for which this stream waits once.
        if !self.is_done(self.newest_beside) {
            let ((stream, _), downloaded) = (self.downloads, self.downloaded);
            self.driver.record(downloaded, stream)?;
            self.driver.wait(self.stream, downloaded)?;
        }
        self.newest_beside = 0;
        self.signal(self.stream)
    }

    /// The stream of downloads, behind what was queued to run.
    fn wait_for_run(&mut self) -> Done<Stream> {
        let (stream, ran) = self.downloads;
        self.driver.record(ran, self.stream)?;
        self.driver.wait(stream, ran)?;
        Ok(stream)
    }

    fn signal(&mut self, stream: Stream) -> Done<u64> {
        self.queued += 1;
        self.driver.signal(stream, &self.signal, 0, self.queued)?;
        Ok(self.queued)
    }

    pub(super) fn is_done(&self, number: u64) -> bool {
        self.signal.word(0).load(Ordering::Acquire) >= number
    }
}
