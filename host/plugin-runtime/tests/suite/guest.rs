//! Guests in the text format: a well-behaved plugin of a few lines, and the places in which a test makes it misbehave.

/// The memory at this address is zero, which reads as success with nothing in it, for every export.
pub(crate) const EMPTY_ANSWER: &str = "(i32.const 1024)";

/// A core module with the plugin's exports. Fields are WAT.
pub(crate) struct Guest {
    pub(crate) version: &'static str,
    pub(crate) memory: &'static str,
    pub(crate) imports: String,
    /// Definitions beside the exports.
    pub(crate) extra: String,
    pub(crate) describe: String,
    pub(crate) unfold: String,
    /// Locals 0 and 1 are the state, 2 to 4 the event.
    pub(crate) resume: String,
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            version: "0.1.0",
            memory: "(memory (export \"memory\") 4)",
            imports: String::new(),
            extra: String::new(),
            describe: EMPTY_ANSWER.to_owned(),
            unfold: EMPTY_ANSWER.to_owned(),
            resume: EMPTY_ANSWER.to_owned(),
        }
    }
}

impl Guest {
    /// A guest whose `unfold` is this.
    pub(crate) fn unfolding(unfold: impl Into<String>) -> Self {
        Self { unfold: unfold.into(), ..Self::default() }
    }

    /// A guest that answers `unfold` with a growth of these bytes, as the canonical ABI lays them out, with `data` at 4096.
    pub(crate) fn answering(growth: &[u8], data: &[u8]) -> Self {
        let answer = [&[0_u8; 4], growth].concat();
        Self {
            extra: format!("(data (i32.const 2048) \"{}\") (data (i32.const 4096) \"{}\")", escaped(&answer), escaped(data)),
            ..Self::unfolding("(i32.const 2048)")
        }
    }

    pub(crate) fn with_extra(mut self, extra: &str) -> Self {
        self.extra.push_str(extra);
        self
    }

    pub(crate) fn with_import(mut self, import: &str) -> Self {
        self.imports.push_str(import);
        self
    }

    pub(crate) fn text(&self) -> String {
        let Self { version, memory, imports, extra, describe, unfold, resume, .. } = self;
        format!(
            r#"(module
            {imports}
            {memory}
            (global $free (mut i32) (i32.const 131072))
            (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (local i32)
                (local.set 4 (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
                (global.set $free (i32.add (local.get 4) (local.get 3)))
                (local.get 4))
            {extra}
            (func (export "cellwright:plugin/unfolding@{version}#describe") (param i32 i32) (result i32) {describe})
            (func (export "cellwright:plugin/unfolding@{version}#unfold") (result i32) {unfold})
            (func (export "cellwright:plugin/unfolding@{version}#resume") (param i32 i32 i32 i32 i32) (result i32) {resume}))"#
        )
    }

    pub(crate) fn wasm(&self) -> Vec<u8> {
        wat::parse_str(self.text()).unwrap_or_else(|error| panic!("{error}\n{}", self.text()))
    }
}

fn escaped(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\{byte:02x}")).collect()
}

/// Numbers as the guest's memory holds them.
pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
