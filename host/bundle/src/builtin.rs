//! The stock plugins, built into the host, so that a bundle may name one instead of bringing its own.

const ALL: [(&str, &[u8]); 4] = [
    ("chain", include_bytes!("../../../plugins/prebuilt/chain.wasm")),
    ("encoder", include_bytes!("../../../plugins/prebuilt/encoder.wasm")),
    ("seq2seq", include_bytes!("../../../plugins/prebuilt/seq2seq.wasm")),
    ("tree", include_bytes!("../../../plugins/prebuilt/tree.wasm")),
];

/// What a bundle writes before the name of a stock plugin.
pub(crate) const PREFIX: &str = "builtin:";

/// The component of the stock plugin of that name.
pub(crate) fn get(name: &str) -> Option<&'static [u8]> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, bytes)| *bytes)
}

/// All names, as a bundle writes them.
pub(crate) fn names() -> String {
    ALL.map(|(name, _)| format!("`{PREFIX}{name}`")).join(", ")
}
