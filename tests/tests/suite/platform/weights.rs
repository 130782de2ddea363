//! The memory for weights, which tenants share.

use cellwright_gate::{ChangeError, NewUpload};
use cellwright_registry::TenantName;
use cellwright_serving::ErrorKind;
use cellwright_tests::platform::{archive, model, options, other_tenant, start_with, summing, tenant};
use tempfile::TempDir;

#[test]
fn whatever_a_tenant_loads_another_has_its_part() {
    let (folder, mut options) = (TempDir::new().unwrap(), options());
    options.serving.engine.weight_bytes_max = Some(1 << 16);
    let platform = start_with(folder.path(), options);
    let [greedy, modest] = ["greedy", "modest"].map(|name| other_tenant(&platform, name));
    let upload = |tenant: &TenantName, number: u8| {
        let name = model(&format!("sums{number}"));
        platform.upload(tenant, &name, archive(&summing(f32::from(number))).as_slice(), NewUpload::default())
    };
    let refused = (0..u8::MAX).find_map(|number| upload(&greedy, number).err()).expect("not everything");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    let used = platform.serving().engine().snapshot().weight_bytes;
    assert!(used > 1 << 15 && refused.to_string().contains(" that its tenant's models hold: unload another model"), "{refused}");
    upload(&modest, 1).expect("its part is its own");
    upload(&tenant(), 1).expect("so is that of a tenant that had no model");
    // It may be told what it holds itself, which others do not change.
    let again = |error: ChangeError| error.to_string();
    assert_eq!(upload(&greedy, u8::MAX).map_err(again).unwrap_err(), again(refused));
}
