//! Loads that take long: who ends them, and whom they hold up.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cellwright_backend::Backend;
use cellwright_gate::{ChangeError, NewUpload, Platform, Readiness};
use cellwright_protocol::messages::admin::{Activated, Uploaded};
use cellwright_registry::TenantName;
use cellwright_serving::{Abandoned, ErrorKind};
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::devices::{Gate, Stopwatch, domain, worker};
use cellwright_tests::graphs::wait_until;
use cellwright_tests::platform::{archive, infer, model, options, other_tenant, registry, start, start_on, summing, tenant};
use cellwright_tests::requests;
use tempfile::TempDir;

fn upload(platform: &Arc<Platform>, tenant: &TenantName, name: &str, bundle: &BundleFolder) -> Result<Uploaded, ChangeError> {
    platform.upload(tenant, &model(name), archive(bundle).as_slice(), NewUpload::default())
}

/// Whoever takes the model out of service.
type End = fn(&Platform);

#[test]
fn whoever_takes_a_model_out_of_service_ends_its_load() {
    let folder = TempDir::new().unwrap();
    let watch = Stopwatch::saying(Duration::from_micros(10)).after(Duration::from_millis(20));
    let platform = start_on(folder.path(), options(), vec![watch.on(worker(&domain(64)))]);
    upload(&platform, &tenant(), "sums", &summing(1.0)).unwrap();
    upload(&platform, &tenant(), "sums", &summing(2.0)).unwrap();
    let ends: [End; 2] = [
        |platform| platform.unload(&tenant(), &model("sums")).unwrap(),
        |platform| platform.delete_model(&tenant(), &model("sums")).unwrap(),
    ];
    let activate = || platform.activate(&tenant(), &model("sums"), 1, &Abandoned::default());
    for end in ends {
        let of_upload = ended(&watch, || upload(&platform, &tenant(), "sums", &summing(3.0)).unwrap_err(), || end(&platform));
        assert_eq!(of_upload.kind(), ErrorKind::Conflict);
        assert_eq!(of_upload.to_string(), "model `sums` was unloaded or deleted during this change");
        assert!(platform.find(&tenant(), "sums", None).is_err());
        wait_until("nothing of it is loaded", || platform.serving().engine().snapshot().weight_bytes == 0);
        if let Ok(Activated { active, .. }) = activate() {
            assert_eq!(active, 1, "it was unloaded, and loads again");
        }
    }
    assert_eq!(activate().unwrap_err().kind(), ErrorKind::NotFound, "it was deleted");
}

#[test]
fn a_client_that_leaves_ends_its_activation() {
    let folder = TempDir::new().unwrap();
    let watch = Stopwatch::saying(Duration::from_micros(10)).after(Duration::from_millis(20));
    let platform = start_on(folder.path(), options(), vec![watch.on(worker(&domain(64)))]);
    let weights = || platform.serving().engine().snapshot().weight_bytes;
    upload(&platform, &tenant(), "sums", &summing(1.0)).unwrap();
    let one = weights();
    upload(&platform, &tenant(), "sums", &summing(2.0)).unwrap();
    wait_until("version 1 is unloaded, and would be measured again", || weights() == one);
    let abandoned = Abandoned::default();
    let activate = || platform.activate(&tenant(), &model("sums"), 1, &abandoned).unwrap_err();
    let error = ended(&watch, activate, || abandoned.give_up());
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Cancelled, "the client of this change did not wait for its end"));
    assert_eq!(platform.find(&tenant(), "sums", None).unwrap().version(), 2, "the version before goes on");
    assert_eq!(platform.registry().model(&tenant(), &model("sums")).unwrap().unwrap().active, Some(2));
}

/// What comes of a change that is ended while its cells are measured.
fn ended<T: Send>(watch: &Stopwatch, change: impl FnOnce() -> T + Send, end: impl FnOnce()) -> T {
    let asked = watch.asked();
    thread::scope(|scope| {
        let changing = scope.spawn(change);
        wait_until("its cells are measured", || watch.asked() > asked);
        end();
        changing.join().unwrap()
    })
}

/// A worker before whose gate the cells of [`BundleFolder::recurrent`] wait.
fn holding(gate: &Gate) -> Vec<Box<dyn Backend>> {
    vec![gate.before_cells(|cell| cell.weight_bytes > 16, worker(&domain(64)))]
}

#[test]
fn after_a_start_tenants_models_load_side_by_side() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    let (first, last) = (other_tenant(&platform, "a"), other_tenant(&platform, "z"));
    for name in ["one", "two"] {
        upload(&platform, &first, name, &BundleFolder::recurrent()).unwrap();
        upload(&platform, &last, name, &summing(1.0)).unwrap();
    }
    drop(platform);

    let gate = Gate::default();
    gate.close();
    let platform = Platform::start(options(), registry(folder.path()), holding(&gate)).unwrap();
    wait_until("all models of the last tenant serve", || {
        ["one", "two"].iter().all(|name| infer(&platform, &last, name, requests::sum(1, 1)).is_ok())
    });
    wait_until("they are counted", || platform.readiness() == Readiness::Starting { loaded: 2, total: 4 });
    // The first is being loaded, the second is in the queue.
    platform.unload(&first, &model("two")).unwrap();
    assert!(gate.holds_somebody());
    gate.open();
    wait_until("all are loaded", || platform.readiness() == Readiness::Ready);
    assert!(platform.find(&first, "one", None).is_ok());
    let sentence = platform.find(&first, "two", None).unwrap_err().to_string();
    assert_eq!(sentence, "model `two` does not serve: it was unloaded");
}

/// Each had a thread of its own that waited for its last call.
#[test]
fn versions_that_retire_take_no_thread_each() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    let weights = || platform.serving().engine().snapshot().weight_bytes;
    let mut held = Vec::new();
    for bias in 0..5_u8 {
        upload(&platform, &tenant(), "busy", &summing(f32::from(bias))).unwrap();
        held.push(platform.find(&tenant(), "busy", None).unwrap());
    }
    let of_all = weights();
    let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    assert_eq!(tasks.filter(|name| name.trim() == "retiring busy").count(), 0);
    held.drain(..3);
    wait_until("what nobody calls any more is unloaded", || weights() == of_all / 5 * 2);
    drop(held);
    wait_until("one serves", || weights() == of_all / 5);
    infer(&platform, &tenant(), "busy", requests::sum(1, 1)).unwrap();
}
