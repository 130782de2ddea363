//! Uploads that are small and become large.

use cellwright_tests::archives::Tar;
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::town::{Town, until};

use super::attacks;

type Form = (usize, f64);

attacks! {
    weights_are_held_once_however_many_models_have_them = shared_weights;
    weights_that_no_cell_reads_are_not_read = unread_weights;
}

const MIB: usize = 1 << 20;

/// Packed, zeros take next to nothing.
fn packed(bundle: &BundleFolder) -> Vec<u8> {
    zstd::encode_all(Tar::of(bundle.path()).finish().as_slice(), 1).expect("memory")
}

fn shared_weights((requests, fraction): Form) {
    const TOKENS: usize = MIB;
    let bundle = BundleFolder::recurrent();
    bundle.edit("model.toml", "vocabulary = 5\nembedding = 4", &format!("vocabulary = {TOKENS}\nembedding = 16"));
    let zeros = vec![0.0; 16 * TOKENS];
    bundle.weights(&[
        ("embedding.weight", &[TOKENS, 16], &zeros),
        ("lstm.weight_ih_l0", &[12, 16], &zeros[..192]),
        ("lstm.weight_hh_l0", &[12, 3], &zeros[..36]),
        ("lstm.bias_ih_l0", &[12], &zeros[..12]),
        ("lstm.bias_hh_l0", &[12], &zeros[..12]),
    ]);
    let upload = packed(&bundle);
    assert!(upload.len() < MIB, "{}", upload.len());
    let town = Town::start(&[]);
    let before = town.resident();
    let models = |count: usize| {
        for number in 0..count {
            let uploaded = town.send(&town.attacker, "PUT", &format!("/v1/models/large{number}"), &upload);
            assert!(matches!(uploaded.status, 200 | 201), "{}", uploaded.text());
        }
    };
    models(8);
    // 64 MiB as they are, and a table of what is computed of them.
    let taken = town.resident().saturating_sub(before);
    assert!(taken < 320, "{taken} MiB");
    town.endures(requests, fraction, |over| until(over, || models(2)));
}

fn unread_weights((requests, fraction): Form) {
    let bundle = BundleFolder::summing();
    bundle.weights(&[("bias", &[4], &[1.0; 4]), ("unread", &[48 * MIB], &vec![0.0; 48 * MIB])]);
    let upload = packed(&bundle);
    let town = Town::start(&[]);
    let before = town.resident();
    let refused = || {
        let refused = town.send(&town.attacker, "PUT", "/v1/models/large", &upload);
        assert!(refused.status == 400 && refused.text().contains("`unread`"), "{} {}", refused.status, refused.text());
        let taken = town.resident().saturating_sub(before);
        assert!(taken < 128, "{taken} MiB");
    };
    town.endures(requests, fraction, |over| until(over, refused));
}
