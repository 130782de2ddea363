//! A tenant that may use the devices for a part of the time, even if nobody else wants them.

use std::time::{Duration, Instant};

use cellwright_gate::{Call, NewUpload, Platform};
use cellwright_registry::TenantSettings;
use cellwright_serving::ErrorKind;
use cellwright_tests::platform::{Ending, archive, begin, infer, model, start, summing, tenant};
use cellwright_tests::requests;
use tempfile::TempDir;

fn set(platform: &Platform, device_share: Option<f64>, queued_max: u32) {
    platform.set_tenant(&tenant(), &TenantSettings { device_share, queued_max, ..TenantSettings::default() }).unwrap();
}

/// A platform whose tenant will not have its share of the devices again for hours.
fn used_up(folder: &TempDir) -> std::sync::Arc<Platform> {
    let platform = start(folder.path());
    platform.upload(&tenant(), &model("sums"), archive(&summing(1.0)).as_slice(), NewUpload::default()).unwrap();
    set(&platform, Some(1e-6), 1);
    // Its share is reckoned from the first call on.
    infer(&platform, &tenant(), "sums", requests::sum(1, 1000)).unwrap();
    while platform.figures(None).models[0].in_flight > 0 {
        std::thread::yield_now();
    }
    platform
}

fn wait_in_line(platform: &Platform) -> Ending {
    let deployed = platform.find(&tenant(), "sums", None).unwrap();
    let answer = begin(platform, &deployed, Call::new(requests::sum(3, 2))).unwrap();
    assert_eq!((platform.figures(None).models[0].in_flight, platform.figures(None).models[0].queued), (0, 1));
    answer
}

#[test]
fn calls_beyond_a_share_wait_and_more_are_refused() {
    let folder = TempDir::new().unwrap();
    let platform = used_up(&folder);
    let waits = wait_in_line(&platform);
    let full = infer(&platform, &tenant(), "sums", requests::sum(1, 1)).unwrap_err();
    assert_eq!(full, "1 call of this tenant waits to begin, which is its limit: try again later");
    set(&platform, None, 1);
    assert_eq!(waits.recv().unwrap().unwrap().outputs[0].to_f32().unwrap()[0], requests::sum_answer(3, 2)[0]);

    set(&platform, Some(1e-6), 0);
    let sentence = infer(&platform, &tenant(), "sums", requests::sum(1, 1)).unwrap_err();
    assert_eq!(sentence, "this tenant has used its share of device time, 1 %: try again later");
}

/// Nothing of it comes to a device.
#[test]
fn what_plugins_take_counts_towards_a_share() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    platform.upload(&tenant(), &model("sums"), archive(&summing(1.0)).as_slice(), NewUpload::default()).unwrap();
    set(&platform, Some(1e-6), 0);
    let refused = || infer(&platform, &tenant(), "sums", requests::misbehaving("refuse-input")).unwrap_err();
    assert_eq!(refused(), "I do not like this input");
    assert_eq!(refused(), "this tenant has used its share of device time, 1 %: try again later");
}

/// Nobody but the clock lets them begin.
#[test]
fn a_tenant_has_its_share_of_the_devices_and_no_more() {
    const SHARE: f64 = 0.02;
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    platform.upload(&tenant(), &model("sums"), archive(&summing(1.0)).as_slice(), NewUpload::default()).unwrap();
    set(&platform, Some(SHARE), 1);
    let used = || Duration::from_nanos(platform.figures(None).models[0].device.device_ns).as_secs_f64();
    let (started, ahead) = (Instant::now(), 0.1);
    let (mut calls, mut before) = (0, 0.0);
    while before < 3.0 * SHARE * ahead {
        before = used();
        infer(&platform, &tenant(), "sums", requests::sum(calls, 1000)).unwrap();
        calls += 1;
    }
    let may_use = SHARE * (started.elapsed().as_secs_f64() + ahead);
    assert!(before <= may_use, "{before} s of device time were used before the last of {calls} calls began, of {may_use} s");
}

#[test]
fn a_call_that_waits_stays_with_its_version() {
    let folder = TempDir::new().unwrap();
    let platform = used_up(&folder);
    let waits = wait_in_line(&platform);
    platform.upload(&tenant(), &model("sums"), archive(&summing(2.0)).as_slice(), NewUpload::default()).unwrap();
    platform.unload(&tenant(), &model("sums")).unwrap();
    set(&platform, None, 1);
    let response = waits.recv().unwrap().unwrap();
    assert_eq!(response.model_version.as_deref(), Some("1"));
    assert_eq!(response.outputs[0].to_f32().unwrap()[0], requests::sum_answer(3, 2)[0]);
}

#[test]
fn calls_that_wait_hear_that_the_host_has_stopped() {
    let folder = TempDir::new().unwrap();
    let platform = used_up(&folder);
    let waits = wait_in_line(&platform);
    drop(platform);
    assert_eq!(waits.recv().unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
}

/// Calls keep the version that they were given: what they use of the devices counts, whatever serves by then.
#[test]
fn a_version_that_was_replaced_counts_as_well() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    platform.upload(&tenant(), &model("sums"), archive(&summing(1.0)).as_slice(), NewUpload::default()).unwrap();
    let first = platform.find(&tenant(), "sums", None).unwrap();
    platform.upload(&tenant(), &model("sums"), archive(&summing(2.0)).as_slice(), NewUpload::default()).unwrap();
    set(&platform, Some(1e-6), 0);
    let ask = || begin(&platform, &first, Call::new(requests::sum(1, 1000)));
    // Its share is reckoned from the first call on.
    ask().unwrap().recv().unwrap().unwrap();
    while platform.figures(None).models.iter().any(|model| model.in_flight > 0) {
        std::thread::yield_now();
    }
    let refused = ask().map(|_| ()).unwrap_err();
    assert_eq!(refused.to_string(), "this tenant has used its share of device time, 1 %: try again later");
}
