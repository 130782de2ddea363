//! Stock plugins built just now say the same as those in the repository.
//!
//! Builds differ from machine to machine, byte for byte; what plugins say must not. `tests/run` builds them into a folder, names it in
//! `CELLWRIGHT_REBUILT`, and runs this test; by itself it is ignored, because nothing else needs a toolchain for WebAssembly.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cellwright_bundle::Bundle;
use cellwright_plugin_runtime::{Compiler, Limits, PluginModel, RequestView, Runtime, RuntimeOptions};
use cellwright_tests::binary::root;

#[test]
#[ignore = "needs plugins built just now, in the folder that CELLWRIGHT_REBUILT names"]
fn rebuilt_plugins_describe_and_unfold_as_the_prebuilt_do() -> Result<()> {
    let rebuilt = PathBuf::from(std::env::var_os("CELLWRIGHT_REBUILT").context("CELLWRIGHT_REBUILT names no folder")?);
    let runtime = Runtime::new(RuntimeOptions::new(Compiler::InProcess))?;
    for example in ["digits", "dates", "listops"] {
        let bundle = Bundle::open(&root().join("examples").join(example))?;
        let stock = bundle.plugin_name().strip_prefix("builtin:").with_context(|| format!("{example} has no stock plugin"))?;
        let bytes = std::fs::read(rebuilt.join(format!("{stock}.wasm")))?;

        let described = |bytes: &[u8]| -> Result<PluginModel> {
            Ok(runtime.compile("", stock, bytes)?.with_parameters(bundle.parameters(), bundle.view(), &Limits::default())?)
        };
        let (old, new) = (described(bundle.plugin_bytes())?, described(&bytes)?);
        ensure!(old.description() == new.description(), "{example}: {:?} has become {:?}", old.description(), new.description());
        for sample in &bundle.samples().all {
            let request = &sample.request;
            let view = Arc::new(RequestView::new(request.inputs.iter().cloned().map(Arc::new), request.parameters.clone()));
            let (old, new) = (old.unfold(&view)?, new.unfold(&view)?);
            ensure!(old == new, "{example}, {:?}: {old:?} has become {new:?}", request.id);
        }
    }
    Ok(())
}
