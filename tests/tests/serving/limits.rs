//! What one request may take, and the one sentence with which it ends when it takes more.

use cellwright_tests::requests;

use super::{behaving, fault, host, refused};

#[test]
fn a_plugin_that_goes_on_for_ever_is_stopped() {
    let host = host();
    for limit in [1, 7] {
        let model = host.limited(&format!("resumes_max = {limit}"));
        let sentence = refused(host.whole(&model, behaving("resume-forever", requests::sum(1, 3))));
        assert_eq!(sentence, fault(&format!("plugin `plugin.wasm` was called back {limit} times for one request, which is the limit")));
    }
    host.is_whole_again();
}
