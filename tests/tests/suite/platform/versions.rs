//! What answers, before, during and after a change of versions; and after a restart.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cellwright_bundle::Bundle;
use cellwright_gate::{ChangeError, NewUpload, Platform};
use cellwright_protocol::messages::repository::ModelState;
use cellwright_registry::{ModelName, RegistryError, TenantSettings};
use cellwright_serving::{Abandoned, ErrorKind};
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::graphs::wait_until;
use cellwright_tests::platform::{archive, infer, model, other_tenant, registry, start, summing, tenant};
use cellwright_tests::requests;
use serde_json::json;
use tempfile::TempDir;

/// What the version with that bias adds to each column of two rows.
fn answered(platform: &Platform, bias: f32) {
    let response = infer(platform, &tenant(), "sums", requests::sum(3, 2)).unwrap();
    assert_eq!(response.outputs[0].to_f32().unwrap()[0], requests::sum_answer(3, 2)[0] - 2.0 + 2.0 * bias);
}

fn upload(platform: &Arc<Platform>, bundle: &BundleFolder) -> cellwright_protocol::messages::admin::Uploaded {
    platform.upload(&tenant(), &model("sums"), archive(bundle).as_slice(), NewUpload::default()).unwrap()
}

fn blobs(folder: &std::path::Path) -> usize {
    let folders = std::fs::read_dir(folder.join("blobs")).unwrap();
    folders.map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap().count()).sum()
}

#[test]
fn versions_are_counted_and_the_last_upload_answers() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    let first = upload(&platform, &summing(1.0));
    assert_eq!((first.version, first.existed, first.activated, first.samples.len()), (1, false, true, 1));
    answered(&platform, 1.0);
    assert_eq!(upload(&platform, &summing(2.0)).version, 2);
    answered(&platform, 2.0);
    let response = infer(&platform, &tenant(), "sums", requests::sum(1, 1)).unwrap();
    assert_eq!((response.model_name.as_str(), response.model_version.as_deref()), ("sums", Some("2")));

    let again = upload(&platform, &summing(1.0));
    assert_eq!((again.version, again.existed, again.activated, again.digest), (1, true, true, first.digest));
    answered(&platform, 1.0);
    let back = platform.roll_back(&tenant(), &model("sums"), &Abandoned::default()).unwrap();
    assert_eq!((back.active, back.previous), (2, Some(1)));
    answered(&platform, 2.0);

    let error = platform.delete_version(&tenant(), &model("sums"), 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    platform.delete_version(&tenant(), &model("sums"), 1).unwrap();
    assert_eq!(
        platform.activate(&tenant(), &model("sums"), 1, &Abandoned::default()).unwrap_err().to_string(),
        "model `sums` has no version 1"
    );
    answered(&platform, 2.0);
    platform.delete_model(&tenant(), &model("sums")).unwrap();
    assert_eq!(infer(&platform, &tenant(), "sums", requests::sum(1, 1)).unwrap_err(), "there is no model `sums`");
    assert_eq!(blobs(folder.path()), 0);
    assert_eq!(upload(&platform, &summing(1.0)).version, 3, "numbers are never used again");
}

#[test]
fn a_version_that_is_not_active_waits_until_it_is_activated() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    let bundle = archive(&summing(1.0));
    let uploaded =
        platform.upload(&tenant(), &model("sums"), bundle.as_slice(), NewUpload { activate: false, ..NewUpload::default() }).unwrap();
    assert!(!uploaded.activated);
    let sentence = infer(&platform, &tenant(), "sums", requests::sum(1, 1)).unwrap_err();
    assert_eq!(sentence, "model `sums` does not serve: none of its versions is active");
    platform.unload(&tenant(), &model("sums")).unwrap();
    assert_eq!(infer(&platform, &tenant(), "sums", requests::sum(1, 1)).unwrap_err(), sentence, "unloading is not what it lacks");
    platform.activate(&tenant(), &model("sums"), 1, &Abandoned::default()).unwrap();
    answered(&platform, 1.0);
    let error = platform.find(&tenant(), "sums", Some("7")).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::NotFound, "version 7 of model `sums` does not serve; version 1 does")
    );
}

#[test]
fn nothing_is_left_of_a_platform_that_has_gone() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    upload(&platform, &summing(1.0));
    upload(&platform, &summing(2.0));
    answered(&platform, 2.0);
    let version = Arc::downgrade(&platform.find(&tenant(), "sums", None).unwrap());
    drop(platform);
    wait_until("its version has gone with it", || version.strong_count() == 0);
}

/// Ends within the plugin, which is the largest file by far.
fn half(mut archive: Vec<u8>) -> Vec<u8> {
    archive.truncate(archive.len() / 2);
    archive
}

#[test]
fn what_fails_its_checks_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    upload(&platform, &summing(1.0));
    let kept = blobs(folder.path());

    let wrong = broken();
    let missing = summing(2.0);
    missing.remove("weights.safetensors");
    let cases = [
        (archive(&wrong), "1 of 1 samples failed; `one`: element 3 of output `sum` is"),
        (archive(&missing), "`weights.safetensors` is missing from the bundle"),
        (half(archive(&summing(2.0))), "the archive is cut off before its end"),
    ];
    for (bytes, sentence) in cases {
        for name in ["sums", "new"] {
            let error = platform.upload(&tenant(), &model(name), bytes.as_slice(), NewUpload::default()).unwrap_err();
            assert!(error.to_string().starts_with(sentence), "{error}");
            assert_eq!(error.kind(), ErrorKind::BadInput);
        }
    }
    answered(&platform, 1.0);
    assert_eq!(platform.index(None).len(), 1, "a model whose first upload failed was never there");
    assert_eq!(blobs(folder.path()), kept, "what was refused leaves nothing on the disk");
    assert_eq!(upload(&platform, &summing(3.0)).version, 2);
}

#[test]
fn what_an_upload_that_fails_costs_does_not_grow_with_what_others_stored() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    upload(&platform, &summing(1.0));
    let kept = blobs(folder.path());
    // Whoever looks at all blobs finds this one.
    drop(platform.registry().new_blob().unwrap().finish().unwrap());
    for bytes in [archive(&broken()), half(archive(&summing(2.0)))] {
        platform.upload(&tenant(), &model("sums"), bytes.as_slice(), NewUpload::default()).unwrap_err();
        assert_eq!(blobs(folder.path()), kept + 1, "its own files are gone, and nobody looked for others");
    }
}

/// With a sample that is not answered as it says.
fn broken() -> BundleFolder {
    let bundle = summing(2.0);
    bundle.edit("model.toml", "requests = \"samples.jsonl\"", "requests = \"samples.jsonl\"\nexpected = \"expected.jsonl\"");
    bundle.write("expected.jsonl", br#"{"id":"one","outputs":[{"name":"sum","datatype":"FP32","shape":[4],"data":[0,0,0,0]}]}"#);
    bundle
}

#[test]
fn switching_drops_no_call() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    upload(&platform, &summing(0.0));
    let (over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let callers = [0, 1, 2].map(|seed| {
            let (platform, over, answers) = (&platform, &over, &answers);
            scope.spawn(move || {
                while !over.load(Ordering::Acquire) {
                    let rows = 1 + seed * 50;
                    let response = infer(platform, &tenant(), "sums", requests::sum(seed, rows)).unwrap();
                    let version: f32 = response.model_version.as_deref().unwrap().parse().unwrap();
                    // Version v has the bias v - 1: an answer is wholly one version's.
                    let expected = requests::sum_answer(seed, rows)[0] + rows as f32 * (version - 2.0);
                    assert_eq!(response.outputs[0].to_f32().unwrap()[0], expected);
                    answers.fetch_add(1, Ordering::AcqRel);
                }
            })
        });
        let over = SetOnDrop(&over);
        for bias in 1..=6_u8 {
            let before = answers.load(Ordering::Acquire);
            upload(&platform, &summing(f32::from(bias)));
            while answers.load(Ordering::Acquire) < before + 20 {
                assert!(!callers.iter().any(|caller| caller.is_finished()), "no caller fails");
                std::thread::yield_now();
            }
        }
        drop(over);
    });
    // What was replaced goes when its last call has ended.
    while platform.serving().engine().counters().in_flight.load(Ordering::Acquire) > 0 {
        std::thread::yield_now();
    }
    answered(&platform, 6.0);
}

/// Lets the callers end even if the test panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn what_is_damaged_on_the_disk_does_not_serve_until_it_is_uploaded_again() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    upload(&platform, &summing(1.0));
    let files = platform.registry().files(&tenant(), &model("sums"), 1).unwrap();
    let weights = files.iter().find(|file| file.path.ends_with(".safetensors")).unwrap();
    let stored = platform.registry().blob_path(&weights.blob.digest);
    drop((files, platform));
    let mut bytes = std::fs::read(&stored).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&stored, bytes).unwrap();

    let platform = start(folder.path());
    let index = platform.index(None);
    let (_, entry) = &index[0];
    assert!(entry.state == ModelState::Unavailable && entry.reason.contains("is damaged where it is stored"), "{entry:?}");
    assert!(infer(&platform, &tenant(), "sums", requests::sum(3, 2)).is_err());
    let again = upload(&platform, &summing(1.0));
    assert_eq!((again.version, again.existed, again.activated), (1, true, true));
    answered(&platform, 1.0);
    drop(platform);
    answered(&start(folder.path()), 1.0);
}

#[test]
fn a_restart_brings_back_what_served() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    upload(&platform, &summing(1.0));
    upload(&platform, &summing(2.0));
    platform.upload(&tenant(), &model("asleep"), archive(&summing(1.0)).as_slice(), NewUpload::default()).unwrap();
    platform.unload(&tenant(), &model("asleep")).unwrap();
    drop(platform);

    let platform = start(folder.path());
    answered(&platform, 2.0);
    let sentence = infer(&platform, &tenant(), "asleep", requests::sum(1, 1)).unwrap_err();
    assert_eq!(sentence, "model `asleep` does not serve: it was unloaded");
    platform.load(&tenant(), &model("asleep"), &Abandoned::default()).unwrap();
    infer(&platform, &tenant(), "asleep", requests::sum(1, 1)).unwrap();
    platform.roll_back(&tenant(), &model("sums"), &Abandoned::default()).unwrap();
    answered(&platform, 1.0);
    drop(platform);

    // A blob that is lost takes its model with it, and no other.
    let registry = registry(folder.path());
    let files = registry.files(&tenant(), &model("asleep"), 1).unwrap();
    let weights = files.iter().find(|file| file.path == "weights.safetensors").unwrap();
    std::fs::remove_file(registry.blob_path(&weights.blob.digest)).unwrap();
    drop((files, registry));
    let platform = start(folder.path());
    let sentence = infer(&platform, &tenant(), "asleep", requests::sum(1, 1)).unwrap_err();
    assert!(sentence.starts_with("model `asleep` does not serve: its active version did not load"), "{sentence}");
}

/// Gives the version that it puts in service.
type Put = fn(&Arc<Platform>) -> u64;

#[test]
fn what_is_put_in_service_after_an_unload_serves_after_a_restart_as_well() {
    let folder = TempDir::new().unwrap();
    let mut platform = start(folder.path());
    upload(&platform, &summing(1.0));
    // The version's number is its bias, too.
    let cases: [(Put, u8); 4] = [
        (|platform| upload(platform, &summing(2.0)).version, 2),
        (|platform| upload(platform, &summing(1.0)).version, 1),
        (|platform| platform.activate(&tenant(), &model("sums"), 2, &Abandoned::default()).unwrap().active, 2),
        (|platform| platform.roll_back(&tenant(), &model("sums"), &Abandoned::default()).unwrap().active, 1),
    ];
    for (put, version) in cases {
        platform.unload(&tenant(), &model("sums")).unwrap();
        assert_eq!(put(&platform), u64::from(version));
        let bias = f32::from(version);
        answered(&platform, bias);
        drop(platform);
        platform = start(folder.path());
        answered(&platform, bias);
    }
}

/// Of one request, under that id.
fn sample(id: &str) -> String {
    format!(r#"{{"id":"{id}","inputs":[{{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}}]}}"#)
}

#[test]
fn a_report_is_short_whatever_its_samples_are_called_and_however_many_there_are() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    let long = summing(1.0);
    long.write("samples.jsonl", sample(&"é".repeat(5000)).as_bytes());
    let uploaded = upload(&platform, &long);
    let name = format!("{}…", "é".repeat(127));
    assert_eq!(uploaded.samples[0].name, name);
    let many = summing(2.0);
    let samples: Vec<_> = (0..1000).map(|number| sample(&format!("{number:0>200}"))).collect();
    many.write("samples.jsonl", samples.join("\n").as_bytes());
    assert_eq!(upload(&platform, &many).samples.len(), 1000);
    let versions = platform.registry().model(&tenant(), &model("sums")).unwrap().unwrap().versions;
    assert_eq!(versions[0].report, json!({ "samples": [{ "name": name, "compared": false }], "more": 0 }));
    let report = &versions[1].report;
    assert!(report.to_string().len() <= 64 << 10);
    let kept = report["samples"].as_array().unwrap().len() as u64;
    assert!((300..1000).contains(&kept) && report["more"] == 1000 - kept, "{kept} are kept, {} are more", report["more"]);
}

#[test]
fn every_version_keeps_its_own_figures() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    // The same weights, so that both models run the same type of cell.
    platform.upload(&tenant(), &model("twin"), archive(&summing(1.0)).as_slice(), NewUpload::default()).unwrap();
    upload(&platform, &summing(1.0));
    let ask =
        |name: &str, calls: usize| (0..calls).for_each(|seed| drop(infer(&platform, &tenant(), name, requests::sum(seed, 3)).unwrap()));
    let figures = |name: &str| {
        let of_model = platform.figures(None).models.into_iter().filter(|figures| figures.name == name);
        of_model.map(|figures| (figures.version, figures.calls.success.count, figures.device.tasks())).collect::<Vec<_>>()
    };
    assert_eq!(figures("sums"), [(1, 0, 0)], "samples are nobody's calls");
    ask("twin", 20);
    assert_eq!(figures("sums"), [(1, 0, 0)], "another model's tasks");
    ask("sums", 5);
    let (twin, first) = (figures("twin"), figures("sums")[0]);
    assert!(first.1 == 5 && first.2 > 0 && twin[0].2 > first.2, "{first:?} {twin:?}");

    upload(&platform, &summing(2.0));
    assert_eq!(figures("sums"), [first, (2, 0, 0)]);
    ask("sums", 2);
    let second = figures("sums")[1];
    assert_eq!((figures("sums")[0], second.1), (first, 2));
    platform.activate(&tenant(), &model("sums"), 1, &Abandoned::default()).unwrap();
    assert_eq!(figures("sums"), [first, second], "a switch changes no figure");
    ask("sums", 5);
    // Calls that come alone take as many tasks each time.
    assert_eq!(figures("sums"), [(1, 10, 2 * first.2), second]);
    platform.delete_version(&tenant(), &model("sums"), 2).unwrap();
    platform.unload(&tenant(), &model("sums")).unwrap();
    assert_eq!(figures("sums"), [(1, 10, 2 * first.2)]);
    assert_eq!(figures("twin"), twin);
}

/// An archive on whose first bytes something happens.
struct Then<'a, F: FnMut()>(&'a [u8], Option<F>);

impl<F: FnMut()> Read for Then<'_, F> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if let Some(mut then) = self.1.take() {
            then();
        }
        self.0.read(buffer)
    }
}

#[test]
fn an_upload_whose_tenant_goes_meanwhile_ends() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    let gone = other_tenant(&platform, "gone");
    let bytes = archive(&summing(1.0));
    let error = platform
        .upload(&gone, &model("sums"), Then(&bytes, Some(|| platform.delete_tenant(&gone).unwrap())), NewUpload::default())
        .unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::NotFound, "there is no tenant `gone`"));
    assert_eq!((platform.index(None).len(), blobs(folder.path())), (0, 0));

    let _ = other_tenant(&platform, "gone");
    let deleted_and_made = || {
        platform.delete_tenant(&gone).unwrap();
        let _ = other_tenant(&platform, "gone");
    };
    assert!(platform.upload(&gone, &model("sums"), Then(&bytes, Some(deleted_and_made)), NewUpload::default()).unwrap().activated);
    infer(&platform, &gone, "sums", requests::sum(1, 1)).unwrap();
}

#[test]
fn an_upload_that_nobody_waits_for_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    let abandoned = Abandoned::default();
    let mut leaving = Some(abandoned.on_drop());
    let bytes = archive(&summing(1.0));
    let upload = NewUpload { activate: true, abandoned };
    let error = platform.upload(&tenant(), &model("sums"), Then(&bytes, Some(|| drop(leaving.take()))), upload).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    assert_eq!((platform.index(None).len(), blobs(folder.path())), (0, 0));
}

#[test]
fn an_upload_beyond_what_its_tenant_may_have_is_refused_before_it_has_come() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    upload(&platform, &summing(1.0));
    let kept = blobs(folder.path());
    let (first, second) = (archive(&summing(1.0)), archive(&summing(2.0)));
    // How many bytes were read before it was refused.
    let refused = |settings: TenantSettings, name: &str| {
        platform.set_tenant(&tenant(), &settings).unwrap();
        let mut left = second.as_slice();
        let error = platform.upload(&tenant(), &model(name), &mut left, NewUpload::default()).unwrap_err();
        assert!(matches!(error, ChangeError::Registry(RegistryError::Quota { .. })), "{error}");
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert_eq!(blobs(folder.path()), kept);
        second.len() - left.len()
    };
    let settings = TenantSettings::default;
    let stored = platform.registry().model(&tenant(), &model("sums")).unwrap().unwrap().versions[0].bytes;
    assert_eq!(refused(TenantSettings { models_max: 1, ..settings() }, "other"), 0);
    assert!(refused(TenantSettings { bytes_max: 10, ..settings() }, "sums") < second.len());
    // All of it but its weights is there.
    assert!(refused(TenantSettings { bytes_max: stored + 10, ..settings() }, "sums") > 0);
    assert!(refused(TenantSettings { versions_max: 1, ..settings() }, "sums") > 0);
    // Files that are there may come again, whatever there is room for.
    platform.set_tenant(&tenant(), &TenantSettings { models_max: 1, versions_max: 1, ..settings() }).unwrap();
    assert!(platform.upload(&tenant(), &model("sums"), first.as_slice(), NewUpload::default()).unwrap().existed);
}

#[test]
fn uploads_at_once_bring_no_more_than_their_tenant_may_have() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    let (first, second) = (archive(&summing(1.0)), archive(&summing(2.0)));
    platform.set_tenant(&tenant(), &TenantSettings { bytes_max: first.len() as u64 * 3 / 2, ..TenantSettings::default() }).unwrap();
    let upload = |bytes: &[u8], then: &mut dyn FnMut()| {
        let archive = bytes[..bytes.len() / 2].chain(Then(&bytes[bytes.len() / 2..], Some(then)));
        platform.upload(&tenant(), &model("sums"), archive, NewUpload::default())
    };
    let mut refused = None;
    let uploaded = upload(&first, &mut || refused = upload(&second, &mut || {}).err());
    assert_eq!(uploaded.unwrap().version, 1);
    assert!(matches!(refused, Some(ChangeError::Registry(RegistryError::Quota { what: "bytes", .. }))), "{refused:?}");
    assert_eq!(upload(&second, &mut || {}).unwrap().version, 2, "what came has become a version, or is gone");
}

#[test]
fn tenants_do_not_see_each_other() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    let other = other_tenant(&platform, "other");
    upload(&platform, &summing(1.0));
    assert_eq!(infer(&platform, &other, "sums", requests::sum(1, 1)).unwrap_err(), "there is no model `sums`");
    platform.upload(&other, &model("sums"), archive(&summing(1.0)).as_slice(), NewUpload::default()).unwrap();
    let keys = |tenant| platform.find(tenant, "sums", None).unwrap().served().cells().iter().map(|cell| cell.key).collect::<Vec<_>>();
    assert_ne!(keys(&tenant()), keys(&other), "equal cells of two tenants are two types");
    assert_eq!(platform.index(Some(&other)).len(), 1);
    platform.delete_model(&other, &model("sums")).unwrap();
    answered(&platform, 1.0);
}

/// Whatever `model.toml` calls a model it can be pushed as.
#[test]
fn bundles_and_the_registry_have_one_rule_for_names() {
    for name in ["m", "0", "-", "_m", "m.1-x_y", &"m".repeat(128), "", ".m", "..", "m/n", "m n", "ü", &"m".repeat(129)] {
        let bundle = BundleFolder::summing();
        bundle.edit("model.toml", "\"sums\"", &format!("{name:?}"));
        let (taken, known) = (Bundle::open(bundle.path()).is_ok(), ModelName::parse(name).is_ok());
        assert_eq!(taken, known, "{name:?}");
    }
}
