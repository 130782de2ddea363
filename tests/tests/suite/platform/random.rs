//! Platforms at random: changes and calls of several tenants at once, whatever comes first, and again after a restart. What answers is a version that was
//! uploaded, with its answer; nothing is left of any call; and the next start finds what the last one had.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cellwright_cell_graph::generate::{Rng, more_seeds, seeds, try_each};
use cellwright_gate::{Call, ChangeError, NewUpload, Platform, PlatformOptions};
use cellwright_protocol::InferRequest;
use cellwright_registry::{ModelName, TenantName, TenantSettings};
use cellwright_serving::{Abandoned, ErrorKind};
use cellwright_tests::graphs::wait_until;
use cellwright_tests::platform::{archive, begin_to_leave, model, options, other_tenant, start_with, summing, tenant};
use cellwright_tests::requests;
use tempfile::TempDir;

/// Worlds that are tried unless somebody asks for more.
const WORLDS: u64 = 2;
/// Bundles, each with a bias of its own.
const BUNDLES: u64 = 5;
/// The blocks of zeros at the end of an archive. One that is cut off within them holds all of its files.
const END_BYTES: usize = 1024;
const MODELS: [&str; 3] = ["one", "two", "three"];

/// A version, for ever: numbers are never used again.
type Version = (TenantName, String, u64);

/// What was answered: by which version, to which request, the first column's sum.
type Said = (Version, (usize, usize), f32);

struct World {
    seed: u64,
    archives: Vec<Vec<u8>>,
    tenants: Vec<TenantName>,
    /// The bias of each version that was ever made.
    versions: Mutex<BTreeMap<Version, u64>>,
    said: Mutex<Vec<Said>>,
}

impl World {
    fn any(&self, rng: &mut Rng) -> (&TenantName, &'static str) {
        let tenant = &self.tenants[rng.below(self.tenants.len() as u64) as usize];
        (tenant, MODELS[rng.below(MODELS.len() as u64) as usize])
    }

    fn change(&self, platform: &Arc<Platform>, rng: &mut Rng) -> Result<(), ChangeError> {
        let (tenant, name) = self.any(rng);
        let (named, version) = (model(name), u64::from(rng.between(1, 8)));
        match rng.below(16) {
            0..5 => self.upload(platform, (tenant, &named), rng),
            5..7 => platform.activate(tenant, &named, version, &Abandoned::default()).map(drop),
            7 => platform.roll_back(tenant, &named, &Abandoned::default()).map(drop),
            8..10 => platform.load(tenant, &named, &Abandoned::default()).map(drop),
            10 => platform.unload(tenant, &named),
            11..13 => platform.delete_version(tenant, &named, version),
            13 if rng.one_in(2) => platform.delete_model(tenant, &named),
            14 => {
                let (in_flight_max, queued_max) = (rng.between(1, 6), rng.between(0, 6));
                let (weight, versions_max) = (rng.between(1, 3), rng.between(2, 6));
                platform
                    .set_tenant(tenant, &TenantSettings { weight, in_flight_max, queued_max, versions_max, ..TenantSettings::default() })?;
                Ok(())
            }
            _ => {
                std::thread::yield_now();
                Ok(())
            }
        }
    }

    fn upload(&self, platform: &Arc<Platform>, (tenant, name): (&TenantName, &ModelName), rng: &mut Rng) -> Result<(), ChangeError> {
        let bias = rng.below(BUNDLES);
        let bytes = &self.archives[bias as usize];
        let whole = !rng.one_in(6);
        let bytes = if whole { &bytes[..] } else { &bytes[..rng.below((bytes.len() - END_BYTES) as u64) as usize] };
        let uploaded = platform.upload(tenant, name, bytes, NewUpload { activate: !rng.one_in(3), ..NewUpload::default() })?;
        assert!(whole, "half of an archive is no version");
        let version = (tenant.clone(), name.as_str().to_owned(), uploaded.version);
        let before = self.versions.lock().unwrap().insert(version, bias);
        assert!(before.is_none_or(|before| before == bias), "{uploaded:?} is of bundle {before:?}, and not {bias}");
        Ok(())
    }

    fn ask(&self, platform: &Platform, rng: &mut Rng) -> Result<(), (ErrorKind, String)> {
        let (tenant, name) = self.any(rng);
        let deployed = platform.find(tenant, name, None).map_err(|error| (error.kind(), error.to_string()))?;
        let (seed, rows) = (rng.below(100) as usize, if rng.one_in(8) { 3000 } else { rng.between(1, 40) as usize });
        let request = self.behaving(requests::sum(seed, rows), rng);
        let timeout = rng.one_in(6).then(|| Duration::from_micros(rng.below(3000)));
        let call = Call { timeout, priority: rng.between(0, 2), ..Call::new(request) };
        let (leaver, answer) = begin_to_leave(platform, &deployed, call).map_err(|error| (error.kind(), error.to_string()))?;
        let leaves = rng.one_in(6);
        if leaves {
            leaver.abort();
        }
        let Ok(result) = answer.recv() else {
            assert!(leaves, "every call whose client stays hears its end");
            return Ok(());
        };
        let response = result.map_err(|error| (error.kind(), error.to_string()))?;
        assert!(answer.recv().is_err(), "a call heard its end twice");
        assert_eq!(response.model_name, name);
        let version = response.model_version.and_then(|version| version.parse().ok()).expect("a version");
        let sum = response.outputs[0].to_f32().unwrap()[0];
        self.said.lock().unwrap().push(((tenant.clone(), name.to_owned(), version), (seed, rows), sum));
        Ok(())
    }

    fn behaving(&self, request: InferRequest, rng: &mut Rng) -> InferRequest {
        match rng.below(12) {
            0 => requests::behaving("trap", request),
            1 => requests::behaving("refuse-input", request),
            2 => requests::behaving("no-such-row", request),
            _ => request,
        }
    }

    /// All of that at once.
    fn live(&self, platform: &Arc<Platform>, life: u64) {
        let rng = |thread: u64| Rng::new(self.seed << 16 | life << 8 | thread);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                scope.spawn(move || {
                    let mut rng = rng(thread);
                    for _ in 0..12 {
                        let Err(error) = self.change(platform, &mut rng) else { continue };
                        let kind = error.kind();
                        assert!(
                            matches!(kind, ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::BadInput | ErrorKind::TooLarge),
                            "{kind:?}: {error}"
                        );
                    }
                });
            }
            for thread in 2..5 {
                scope.spawn(move || {
                    let mut rng = rng(thread);
                    for _ in 0..100 {
                        let Err((kind, sentence)) = self.ask(platform, &mut rng) else { continue };
                        let may = !matches!(kind, ErrorKind::Internal | ErrorKind::Full | ErrorKind::Draining | ErrorKind::TooLarge);
                        assert!(may, "{kind:?}: {sentence}");
                    }
                });
            }
        });
    }

    /// Nothing is left of any call, and each answer is that of its version.
    fn look(&self, platform: &Platform) {
        let engine = platform.serving().engine();
        let calls = || platform.figures(None).models.iter().map(|model| model.in_flight + model.queued).sum::<u32>();
        wait_until("no call has a place", || calls() == 0);
        wait_until("nothing is in the engine", || engine.counters().in_flight.load(Ordering::Relaxed) == 0);
        wait_until("all slots are free", || engine.snapshot().domains.iter().all(|domain| domain.slots_used == 0));
        let versions = self.versions.lock().unwrap();
        for (version, (seed, rows), sum) in self.said.lock().unwrap().drain(..) {
            let bias = versions.get(&version).unwrap_or_else(|| panic!("{version:?} answered, which nobody uploaded"));
            assert_eq!(
                sum,
                requests::sum_answer(seed, rows)[0] + rows as f32 * (*bias as f32 - 1.0),
                "{version:?}: seed {seed}, {rows} rows"
            );
        }
    }

    /// What serves, and what would.
    fn standing(&self, platform: &Platform) -> Vec<String> {
        let models = self.tenants.iter().flat_map(|tenant| MODELS.map(|name| (tenant, name)));
        let known = models.map(|(tenant, name)| format!("{:?}", platform.registry().model(tenant, &model(name)).unwrap()));
        platform.index(None).iter().map(|entry| format!("{entry:?}")).chain(known).collect()
    }
}

fn run(seed: u64) {
    let folder = TempDir::new().unwrap();
    let of_seed = || {
        let mut options = PlatformOptions { model_in_flight_max: if seed.is_multiple_of(2) { 3 } else { 1 << 14 }, ..options() };
        options.serving.engine.batch_max = if seed.is_multiple_of(3) { 4 } else { 32 };
        options
    };
    let archives = (0..BUNDLES).map(|bias| archive(&summing(bias as f32))).collect();
    let (versions, said) = Default::default();
    let mut world = World { seed, archives, tenants: vec![tenant()], versions, said };
    let mut last: Option<Vec<String>> = None;
    for life in 0..3 {
        let platform = start_with(folder.path(), of_seed());
        if life == 0 {
            world.tenants.push(other_tenant(&platform, "other"));
        }
        if let Some(last) = last {
            for (found, left) in world.standing(&platform).iter().zip(&last) {
                assert_eq!(found, left, "a start finds what the last one left");
            }
        }
        world.live(&platform, life);
        world.look(&platform);
        last = Some(world.standing(&platform));
    }
}

/// Or the one in `CELLWRIGHT_SEED`.
#[test]
fn any_changes_and_any_calls() {
    try_each(seeds(WORLDS), run);
}

/// As many more as `CELLWRIGHT_SEEDS` says (100 if it says nothing), none of which the other test tries.
#[test]
#[ignore = "as long as one likes: CELLWRIGHT_SEEDS=1000 cargo test --release -p cellwright-tests --test suite platform -- --ignored"]
fn soak() {
    try_each(more_seeds(100), run);
}
