//! Bounds that a model's `model.toml` sets for all its calls together: they are its own, and its tenant's other models do not notice.

use std::sync::Arc;

use cellwright_gate::{Call, Deployed, NewUpload, Platform};
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::devices::{Gate, domain, worker};
use cellwright_tests::platform::{Ending, archive, begin, infer, model, options, start, start_on, summing, tenant};
use cellwright_tests::requests;
use tempfile::TempDir;

fn limited(limits: &str) -> BundleFolder {
    let bundle = summing(1.0);
    bundle.edit("model.toml", "[samples]", &format!("[limits]\n{limits}\n[samples]"));
    bundle
}

fn upload(platform: &Arc<Platform>, name: &str, bundle: &BundleFolder) -> Arc<Deployed> {
    platform.upload(&tenant(), &model(name), archive(bundle).as_slice(), NewUpload::default()).unwrap();
    platform.find(&tenant(), name, None).unwrap()
}

fn ask(platform: &Arc<Platform>, deployed: &Arc<Deployed>, seed: usize) -> Ending {
    begin(platform, deployed, Call::new(requests::sum(seed, 3))).unwrap()
}

fn right(answer: &Ending, seed: usize) {
    assert_eq!(answer.recv().unwrap().unwrap().outputs[0].to_f32().unwrap()[0], requests::sum_answer(seed, 3)[0]);
}

fn counts(platform: &Platform) -> Vec<(u32, u32)> {
    platform.figures(None).models.iter().map(|model| (model.in_flight, model.queued)).collect()
}

#[test]
fn a_model_may_ask_for_fewer_calls_at_once() {
    let (folder, gate) = (TempDir::new().unwrap(), Gate::default());
    let platform = start_on(folder.path(), options(), vec![gate.before(worker(&domain(16)))]);
    // Dropped first, so that a failure ends the test rather than waiting behind it.
    let gate = gate;
    let few = upload(&platform, "few", &limited("in_flight_max = 1\nqueued_max = 1"));
    let many = upload(&platform, "many", &summing(1.0));
    gate.close();
    let few_answers = [ask(&platform, &few, 1), ask(&platform, &few, 2)];
    let many_answers = [ask(&platform, &many, 3), ask(&platform, &many, 4)];
    assert_eq!(counts(&platform), [(1, 1), (2, 0)]);
    let refused = begin(&platform, &few, Call::new(requests::sum(1, 3))).unwrap_err();
    assert_eq!(refused.to_string(), "1 call of this model waits to begin, which is its limit: try again later");
    gate.open();
    right(&few_answers[0], 1);
    right(&few_answers[1], 2);
    right(&many_answers[0], 3);
    right(&many_answers[1], 4);
}

/// A model that will not have its share of the devices again for hours, beside one without bounds.
#[test]
fn a_model_may_have_a_share_of_the_devices() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    let free = upload(&platform, "free", &summing(1.0));
    let little = upload(&platform, "little", &limited("device_share = 1e-6\nqueued_max = 1"));
    // Its share is reckoned from the first call on.
    infer(&platform, &tenant(), "little", requests::sum(1, 1000)).unwrap();
    while counts(&platform) != [(0, 0), (0, 0)] {
        std::thread::yield_now();
    }
    let waits = ask(&platform, &little, 2);
    assert_eq!(counts(&platform), [(0, 0), (0, 1)]);
    let full = begin(&platform, &little, Call::new(requests::sum(1, 3))).unwrap_err();
    assert_eq!(full.to_string(), "1 call of this model waits to begin, which is its limit: try again later");
    right(&ask(&platform, &free, 5), 5);
    assert_eq!(counts(&platform)[1], (0, 1));

    // Whoever waits begins when a version comes that may use more.
    upload(&platform, "little", &limited("queued_max = 0"));
    right(&waits, 2);

    // A new version does not make up for what was used.
    upload(&platform, "little", &limited("device_share = 1e-6\nqueued_max = 0"));
    let sentence = infer(&platform, &tenant(), "little", requests::sum(1, 1)).unwrap_err();
    assert_eq!(sentence, "this model has used its share of device time, 1 %: try again later");
}

/// The clock looks at a tenant's line when the first of its models may go on, though it was told of another before that waits for longer.
#[test]
fn a_model_that_waits_for_hours_holds_no_other_up() {
    let folder = TempDir::new().unwrap();
    let platform = start(folder.path());
    let little = upload(&platform, "little", &limited("device_share = 1e-6"));
    let some = upload(&platform, "some", &limited("device_share = 0.02"));
    let use_up = |name: &str, deployed: &Arc<Deployed>| {
        while platform.figures(None).models.iter().all(|model| model.queued == 0 || model.name != name) {
            // Whoever waits for it is not waited for.
            drop(begin(&platform, deployed, Call::new(requests::sum(1, 1000))).unwrap().recv_timeout(std::time::Duration::from_millis(1)));
        }
    };
    use_up("little", &little);
    use_up("some", &some);
    right(&ask(&platform, &some, 2), 2);
    assert!(platform.figures(None).models.iter().any(|model| model.name == "little" && model.queued > 0));
}
