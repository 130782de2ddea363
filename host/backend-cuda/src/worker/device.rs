//! A device as the worker uses it: a stream of work with one for what comes and one for what goes beside it, the kernels, and what becomes of faults.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cellwright_backend::DeviceLost;
use cellwright_cell_graph::typed::Precision;

use super::recurrent::LstmKernels;
use crate::abi::{self, Arguments, PRODUCT_COLUMNS, PRODUCT_THREADS, PRODUCT_TILES, Plain, bytes_of, product_shared};
use crate::driver::{DeviceAddress, Done, Driver, Event, Fault, Kernel, Launch, Pinned, Stream};

/// How long a look at the signal is followed by another one at once, and how long the pauses are afterwards.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) spin: Duration,
    pub(super) pause: Duration,
}

/// The kernels, loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels {
    pub(super) gather: Kernel,
    pub(super) finish: Kernel,
    pub(super) begin_words: Kernel,
    pub(super) group: Kernel,
    /// By the rows of their tiles.
    pub(super) products_f32: [Kernel; 3],
    pub(super) products_bf16: [Kernel; 3],
    /// None on a device that lacks them.
    pub(super) lstm: Option<LstmKernels>,
}

/// Looks at the signal between two questions whether the device is still there.
const LOOKS: u32 = 256;

fn products(driver: &mut dyn Driver, names: [&'static str; 3]) -> Done<[Kernel; 3]> {
    let [first, second, third] = names;
    Ok([driver.kernel(first)?, driver.kernel(second)?, driver.kernel(third)?])
}

pub(super) struct Device {
    pub(super) driver: Box<dyn Driver>,
    /// Where kernels run.
    pub(super) stream: Stream,
    /// Where tasks come and go, beside what runs.
    uploads: (Stream, Event),
    downloads: (Stream, Event),
    pub(super) kernels: Kernels,
    pub(super) name: String,
    /// Holds the number of the newest segment that is done.
    signal: Pinned,
    /// The number of the newest segment that was queued.
    pub(super) queued: u64,
    /// Why it is lost.
    lost: Option<String>,
    patience: Patience,
}

impl Device {
    pub(super) fn new(mut driver: Box<dyn Driver>, patience: Patience) -> Done<Self> {
        let stream = driver.stream()?;
        let uploads = (driver.stream()?, driver.event()?);
        let downloads = (driver.stream()?, driver.event()?);
        let kernels = Kernels {
            gather: driver.kernel(abi::GatherArguments::KERNEL)?,
            finish: driver.kernel(abi::FinishArguments::KERNEL)?,
            begin_words: driver.kernel(abi::WordsArguments::KERNEL)?,
            group: driver.kernel(abi::GroupArguments::KERNEL)?,
            products_f32: products(&mut *driver, abi::PRODUCTS_F32)?,
            products_bf16: products(&mut *driver, abi::PRODUCTS_BF16)?,
            lstm: LstmKernels::of(&mut *driver)?,
        };
        let signal = driver.pinned(size_of::<u64>())?;
        let facts = driver.facts();
        let name = format!("cuda {}: {}", facts.ordinal, facts.name);
        Ok(Self { driver, stream, uploads, downloads, kernels, name, signal, queued: 0, lost: None, patience })
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

    /// Queues a kernel.
    ///
    /// # Safety
    /// As for [`Driver::launch`], and the kernel takes that structure.
    pub(super) unsafe fn launch<A: Plain>(&mut self, launch: &Launch, arguments: &A) -> Done {
        // SAFETY: the caller's promise.
        unsafe { self.driver.launch(self.stream, launch, bytes_of(arguments)) }
    }

    /// How a product of so many rows and columns is launched. No bit of it depends on that.
    pub(super) fn product(&self, precision: Precision, rows: u32, n: u32) -> Launch {
        let columns = n.div_ceil(PRODUCT_COLUMNS);
        let multiprocessors = self.driver.facts().multiprocessors;
        // The largest tile that is mostly full and leaves work for everyone: larger ones read less for as much work.
        let is_worth_it = |tile: u32| rows > tile / 2 && columns * rows.div_ceil(tile) >= multiprocessors;
        let number = (0..PRODUCT_TILES.len()).rev().find(|number| is_worth_it(PRODUCT_TILES[*number])).unwrap_or_default();
        let (tile, is_f32) = (PRODUCT_TILES[number], precision == Precision::F32);
        let kernels = if is_f32 { self.kernels.products_f32 } else { self.kernels.products_bf16 };
        Launch {
            kernel: kernels[number],
            grid: [columns, rows.div_ceil(tile), 1],
            threads: PRODUCT_THREADS,
            shared_bytes: product_shared(tile, is_f32),
            cooperative: false,
        }
    }

    /// Queues an upload, beside what runs already and before what will run.
    pub(super) fn upload(&mut self, (from, offset): (&Pinned, usize), to: DeviceAddress, bytes: usize) -> Done {
        let (stream, uploaded) = self.uploads;
        self.driver.upload(stream, from, offset, to, bytes)?;
        self.driver.record(uploaded, stream)?;
        self.driver.wait(self.stream, uploaded)
    }

    /// Queues a download behind what was queued to run, beside what will run, and the signal that it is done: its number.
    pub(super) fn download(&mut self, from: DeviceAddress, (to, offset): (&Pinned, usize), bytes: usize) -> Done<u64> {
        let (stream, ran) = self.downloads;
        self.driver.record(ran, self.stream)?;
        self.driver.wait(stream, ran)?;
        if bytes > 0 {
            self.driver.download(stream, from, to, offset, bytes)?;
        }
        self.signal()
    }

    /// Queues the signal that everything before it has run: its number.
    pub(super) fn queue_signal(&mut self) -> Done<u64> {
        let (stream, ran) = self.downloads;
        self.driver.record(ran, self.stream)?;
        self.driver.wait(stream, ran)?;
        self.signal()
    }

    // Always on one stream, so that numbers are seen in their order.
    fn signal(&mut self) -> Done<u64> {
        let (stream, _) = self.downloads;
        self.queued += 1;
        self.driver.signal(stream, &self.signal, 0, self.queued)?;
        Ok(self.queued)
    }

    pub(super) fn is_done(&self, number: u64) -> bool {
        self.signal.word(0).load(Ordering::Acquire) >= number
    }

    /// Waits for a signal, without a call that would wait.
    pub(super) fn wait_for(&mut self, number: u64) -> Result<(), DeviceLost> {
        let began = Instant::now();
        let mut looks = 0_u32;
        while !self.is_done(number) {
            looks = looks.wrapping_add(1);
            let is_patient = began.elapsed() > self.patience.spin;
            if is_patient || looks.is_multiple_of(LOOKS) {
                let there = self.driver.check();
                self.held(there)?;
            }
            if is_patient {
                std::thread::sleep(self.patience.pause);
            } else {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }
}
