//! The honest answers that the other tests compare with.

use cellwright_tests::host::Host;
use cellwright_tests::neighbours::beside;
use cellwright_tests::requests;

#[test]
fn sums_are_right_for_every_length() {
    let host = Host::shared();
    for rows in [1, 2, 3, 17, 300] {
        let response = host.infer(host.summing(), requests::sum(rows, rows)).expect("an answer");
        assert_eq!(response.outputs[0].name, "sum");
        assert_eq!(response.outputs[0].shape, [4]);
        assert_eq!(response.outputs[0].to_f32(), Some(requests::sum_answer(rows, rows)));
    }
}

/// The plugin is called back once and grows one more step over row 0 on top of the first chain's end.
#[test]
fn a_graph_that_grows_refers_to_what_it_kept() {
    let host = Host::shared();
    let response = host.infer(host.summing(), requests::misbehaving("resume-honest")).expect("an answer");
    let first_row_again = requests::sum_answer(1, 1);
    let expected: Vec<f32> = requests::sum_answer(1, 3).iter().zip(first_row_again).map(|(sum, row)| sum + row).collect();
    assert_eq!(response.outputs[0].to_f32(), Some(expected));
}

/// Seen to fail with an answer off by one; otherwise every test that runs beside others would prove nothing.
#[test]
#[should_panic(expected = "honest requests get their right answers")]
fn a_wrong_answer_beside_something_bad_is_seen() {
    let host = Host::shared();
    let bundle = cellwright_tests::bundle_folder::BundleFolder::summing();
    bundle.weights(&[("bias", &[4], &[1.0, 2.0, 3.0, 5.0])]);
    let model = host.load(&bundle).expect("it loads, with another bias");
    beside(host, &model, || ());
}
