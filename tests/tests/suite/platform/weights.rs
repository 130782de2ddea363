//! The memory for weights, which tenants share.

use cellwright_gate::{ChangeError, NewUpload};
use cellwright_registry::TenantName;
use cellwright_serving::ErrorKind;
use cellwright_tests::bundle_folder::HOSTILE;
use cellwright_tests::host::Host;
use cellwright_tests::platform::{archive, model, options, other_tenant, start_with, summing, tenant};
use tempfile::TempDir;

#[test]
fn whatever_a_tenant_loads_another_has_its_part() {
    let (folder, mut options) = (TempDir::new().unwrap(), options());
    // Half of it is divided: each of three has a part of more than one plugin's code.
    let code = Host::shared().summing().plugin().code_bytes();
    options.serving.engine.weight_bytes_max = Some(8 * code);
    let platform = start_with(folder.path(), options);
    let [greedy, modest] = ["greedy", "modest"].map(|name| other_tenant(&platform, name));
    let upload = |tenant: &TenantName, number: u8| {
        let name = model(&format!("sums{number}"));
        let bundle = summing(f32::from(number));
        // Another plugin each time: a section called `n` of one byte.
        bundle.write("plugin.wasm", &[HOSTILE, &[0, 3, 1, b'n', number][..]].concat());
        platform.upload(tenant, &name, archive(&bundle).as_slice(), NewUpload::default())
    };
    let (uploads, refused) = (0..u8::MAX).find_map(|number| Some((number, upload(&greedy, number).err()?))).expect("not everything");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!((4..8).contains(&uploads) && refused.to_string().contains(" that its tenant's models hold: unload another model"), "{refused}");
    upload(&modest, 1).expect("its part is its own");
    upload(&tenant(), 1).expect("so is that of a tenant that had no model");
    // It may be told what it holds itself, which others do not change.
    let again = |error: ChangeError| error.to_string();
    assert_eq!(upload(&greedy, u8::MAX).map_err(again).unwrap_err(), again(refused));
}
