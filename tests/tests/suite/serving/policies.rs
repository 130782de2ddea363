//! A model's own choice of policy, in its `model.toml`.

use cellwright_bundle::Bundle;
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::requests;

use super::host;

fn under(policy: &str) -> BundleFolder {
    let folder = BundleFolder::summing();
    folder.edit("model.toml", "[parameters]", &format!("policy = \"{policy}\"\nlatency_objective_ms = 20\n\n[parameters]"));
    folder
}

/// Side by side, on one worker.
#[test]
fn models_of_every_policy_answer_alike() {
    let host = host();
    let wanted = host.whole(&host.load(&BundleFolder::summing()), requests::sum(1, 9)).unwrap();
    for policy in
        ["cellular", "adaptive", "graph:4", "serial", "merge:8", "lazy", "lazy:5:50", "length-aware", "length-aware:1:9", "stages:3"]
    {
        let model = host.load(&under(policy));
        assert_eq!(host.whole(&model, requests::sum(1, 9)).unwrap(), wanted, "{policy}");
    }
}

#[test]
fn a_policy_that_there_is_not_is_named() {
    let refused = host().serving.load(&Bundle::open(under("fold").path()).unwrap(), "tests").map(drop).unwrap_err().to_string();
    assert!(
        refused.starts_with("model.toml: line 5: policy: `fold` is not a policy; the policies are `adaptive`, `cellular`, "),
        "{refused}"
    );
    assert!(refused.ends_with("and `stages:COUNT:STRETCH_MS`"), "{refused}");
}
