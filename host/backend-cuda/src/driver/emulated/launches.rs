//! Which launches an emulated device takes, and how they run.
//!
//! In a graph, a launch may begin before the launch in front of it has ended (programmatic
//! dependent launch). Kernels wait by themselves (`launch_wait` in `kernels/ptx.cuh`). A kernel
//! that reads too early gives wrong results now and then on a real device, and nobody would see
//! why. So the emulation begins blocks of a graph's next launches early, at random, and lets them
//! run as far as they get. It refuses a launch of which no block waits.

use std::collections::VecDeque;
use std::sync::Arc;

use super::compile::Library;
use super::device::Work;
use super::kernels::Begun;
use super::{Emulated, Loaded, kernels};
use crate::driver::{Done, Fault, Kernel, Launch};

/// What a kernel's arguments may take.
const ARGUMENT_BYTES_MAX: usize = 4096;

/// Threads that a multiprocessor has at once.
const THREADS_RESIDENT: u32 = 2048;

/// Shared memory that each block takes for itself.
const BLOCK_SHARED_BYTES: u32 = 1 << 10;

/// How many launches have begun, at most, while the one in front of them has not run.
const EARLY_MAX: usize = 2;

/// A launch that is queued.
pub(super) struct Queued {
    pub(super) name: &'static str,
    pub(super) compiled: Option<Library>,
    pub(super) launch: Launch,
    pub(super) arguments: Arc<[u8]>,
    /// Whether it comes behind another launch of its graph.
    pub(super) follows: bool,
    /// If it has begun.
    pub(super) begun: Option<Begun>,
}

impl Queued {
    /// The same launch, of which nothing has begun.
    fn again(&self) -> Self {
        let Self { name, compiled, launch, follows, .. } = *self;
        Self { name, compiled, launch, arguments: Arc::clone(&self.arguments), follows, begun: None }
    }

    /// Runs it, or what is left of it. The error is a sentence.
    pub(super) fn run(&mut self, seed: u64) -> Result<(), String> {
        if !self.follows {
            return kernels::launch(self, seed);
        }
        let begun = match self.begun.take() {
            Some(begun) => begun,
            None => kernels::begin(self, false, seed)?,
        };
        kernels::end(self.name, begun)
    }
}

/// A launch that is to begin before those in front of it have run.
pub(super) struct Early {
    queued: Queued,
    /// Its place in its queue.
    place: usize,
    seed: u64,
}

impl Early {
    /// Which launches of a queue are to begin while the piece of work that was in front of it runs, if that is a launch: none before the one in front of it, and
    /// each every other time.
    pub(super) fn drawn(queue: &VecDeque<Work>, mut draw: impl FnMut() -> u64) -> Vec<Self> {
        let followers = queue.iter().map_while(|work| if let Work::Launch(queued) = work { Some(queued) } else { None });
        let followers = followers.take(EARLY_MAX).take_while(|queued| queued.follows).enumerate();
        let may_begin = followers.take_while(|(_, queued)| queued.begun.is_some() || draw().is_multiple_of(2));
        let to_begin: Vec<_> = may_begin.filter(|(_, queued)| queued.begun.is_none()).collect();
        to_begin.into_iter().map(|(place, queued)| Self { queued: queued.again(), place, seed: draw() }).collect()
    }

    /// Begins it. The error is a sentence.
    pub(super) fn begin(mut self) -> Result<Self, String> {
        self.queued.begun = Some(kernels::begin(&self.queued, true, self.seed)?);
        Ok(self)
    }

    /// Leaves in its queue that it has begun, unless that was emptied.
    pub(super) fn leave_in(self, queue: &mut VecDeque<Work>) {
        if let Some(Work::Launch(queued)) = queue.get_mut(self.place) {
            queued.begun = self.queued.begun;
        }
    }
}

impl Emulated {
    /// A launch as it is queued, if a device would take it.
    pub(super) fn checked(&self, launch: &Launch, arguments: &[u8]) -> Done<Work> {
        let Some(loaded) = self.kernels.get(launch.kernel.0 as usize).copied().filter(|loaded| !loaded.is_released) else {
            return Err(Fault::Refused("a kernel of another driver is launched".to_owned()));
        };
        let Loaded { name, compiled, argument_bytes: takes, .. } = loaded;
        let refused = |why: String| Err(Fault::Refused(format!("kernel `{name}`: {why}")));
        if arguments.len() != takes || takes > ARGUMENT_BYTES_MAX {
            return refused(format!("takes {takes} bytes of arguments (at most {ARGUMENT_BYTES_MAX}), got {}", arguments.len()));
        }
        let [x, y, z] = launch.grid;
        if x == 0 || x > i32::MAX as u32 || [y, z].iter().any(|side| !(1..=65535).contains(side)) || !(1..=1024).contains(&launch.threads) {
            return refused(format!("cannot have a grid of {x} x {y} x {z} blocks of {} threads", launch.threads));
        }
        if launch.shared_bytes > self.facts.shared_bytes_max {
            return refused(format!("asks for {} bytes of shared memory, there are {}", launch.shared_bytes, self.facts.shared_bytes_max));
        }
        if launch.cooperative {
            if self.device.state()?.faults.cooperation_fails() {
                return refused("its blocks cannot run at once for now".to_owned());
            }
            let most = self.resident(launch.kernel, launch.threads, launch.shared_bytes)?;
            if u64::from(x) * u64::from(y) * u64::from(z) > u64::from(most) {
                return refused(format!("{x} x {y} x {z} blocks are to wait for one another, {most} run at once"));
            }
        } else if kernels::is_cooperative(name) {
            return refused("its blocks wait for one another, but need not run at once".to_owned());
        }
        Ok(Work::Launch(Queued { name, compiled, launch: *launch, arguments: arguments.into(), follows: false, begun: None }))
    }

    /// How many blocks run at once.
    pub(super) fn resident(&self, kernel: Kernel, threads: u32, shared_bytes: u32) -> Done<u32> {
        self.device.check()?;
        if kernel.0 as usize >= self.kernels.len() {
            return Err(Fault::Refused("a kernel of another driver is named".to_owned()));
        }
        if !self.cooperates {
            return Ok(0);
        }
        // Registers are not counted: nobody here knows how many a kernel takes.
        let by_threads = THREADS_RESIDENT / threads.max(1);
        let by_memory = (self.facts.shared_bytes_max + BLOCK_SHARED_BYTES) / (shared_bytes + BLOCK_SHARED_BYTES);
        Ok(self.facts.multiprocessors * by_threads.min(by_memory))
    }
}

#[cfg(test)]
mod tests {
    use crate::abi::{CompiledGroupArguments, bytes_of};
    use crate::driver::emulated::{Emulated, Emulation};
    use crate::driver::{DeviceAddress, Driver, Fault, GraphLaunch, Launch};

    const FILLED: u32 = 7;

    /// A kernel that passes one word on, and does so much before.
    fn passing_on(first: &str, then: &str) -> String {
        format!(
            "#include \"group_stretches.cuh\"\n\
             extern \"C\" __global__ void compiled_group(const __grid_constant__ CompiledGroupArguments a) {{\n\
             const volatile uint32_t* from = reinterpret_cast<const uint32_t*>(a.frame);\n\
             uint32_t* to = reinterpret_cast<uint32_t*>(a.blobs);\n\
             uint32_t word = 0;\n{first};\n{then};\n*to = word;\n}}\n\
             KERNEL(compiled_group, CompiledGroupArguments)\n"
        )
    }

    /// What came through a graph that fills a word and passes it on twice, by each of several launches of it.
    fn passed_on(seed: u64, source: &str) -> Result<Vec<u32>, Fault> {
        let mut driver = Emulated::new(&Emulation { seed, compiles: true, ..Emulation::default() });
        let (stream, kernel) = (driver.stream()?, driver.compiled(source)?.expect("it compiles"));
        let words: [DeviceAddress; 3] = [driver.allocate(4)?, driver.allocate(4)?, driver.allocate(4)?];
        let launch = Launch { kernel: driver.kernel("fill")?, grid: [1; 3], threads: 32, shared_bytes: 0, cooperative: false };
        let fill = GraphLaunch { launch, arguments: [words[0].0, 1, u64::from(FILLED)].map(u64::to_ne_bytes).concat() };
        let pass = |from: usize| {
            let arguments = CompiledGroupArguments { frame: words[from].0, blobs: words[from + 1].0, stride: 0, padding: 0, rows_at: 0 };
            GraphLaunch { launch: Launch { kernel, threads: 1, ..launch }, arguments: bytes_of(&arguments).to_vec() }
        };
        let graph = driver.graph(stream, &[fill, pass(0), pass(1)])?;
        let mut passed = [0; 4];
        (0..32)
            .map(|_| {
                words.iter().try_for_each(|word| driver.zero(stream, *word, 4))?;
                // SAFETY: the words are the driver's, and stay.
                unsafe { driver.launch_graph(stream, graph) }?;
                driver.read(stream, words[2], &mut passed)?;
                Ok(u32::from_ne_bytes(passed))
            })
            .collect()
    }

    #[test]
    fn launches_of_a_graph_wait_for_those_in_front_by_themselves() {
        for seed in 0..3 {
            let right = passed_on(seed, &passing_on("launch_wait()", "word = *from"));
            assert_eq!(right, Ok(vec![FILLED; 32]), "seed {seed}");
            let wrong = passed_on(seed, &passing_on("word = *from", "launch_wait()")).expect("it runs");
            // Where neither began early all is as it should be.
            assert!(wrong.contains(&FILLED) && wrong.contains(&0), "seed {seed}: {wrong:?}");
            let never = passed_on(seed, &passing_on("word = *from", ""));
            assert!(
                matches!(&never, Err(Fault::Lost(cause)) if cause.contains("does not wait for the launch in front of it")),
                "seed {seed}: {never:?}"
            );
        }
    }
}
