//! The plugin ABI as Rust types, generated from `guest-sdk/wit`. The rest of the crate builds these; nothing here is written by hand.

#![expect(missing_docs, reason = "generated; the WIT file documents every type")]

wit_bindgen::generate!({
    path: "../wit",
    world: "plugin",
    additional_derives: [PartialEq],
    pub_export_macro: true,
    export_macro_name: "export_abi",
    default_bindings_module: "cellwright_guest::abi",
});
