//! The direction of dependency, and what every source file owes its reader, checked by machine.
//!
//! A crate that begins to depend on what it must not, a `mod.rs`, a file that does not say why it exists: each fails here, with the rule it
//! breaks. The rules are plain functions over a plain [`Graph`], so that each can be seen to fail on a made-up one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

/// Which of our crates each of our crates may name (normal and build dependencies); `host/ARCHITECTURE.md` says why. The crates that
/// wire everything together may name all of them.
const ARROWS: &[(&str, &[&str])] = &[
    ("cellwright-cell-graph", &[]),
    ("cellwright-scheduler", &["cellwright-cell-graph"]),
    ("cellwright-backend", &["cellwright-cell-graph"]),
    ("cellwright-conformance", &["cellwright-backend", "cellwright-cell-graph"]),
    ("cellwright-backend-cpu", &["cellwright-backend", "cellwright-cell-graph"]),
    ("cellwright-backend-cuda", &["cellwright-backend", "cellwright-cell-graph"]),
    ("cellwright-engine", &["cellwright-backend", "cellwright-cell-graph", "cellwright-fair-turns", "cellwright-scheduler"]),
    ("cellwright-fair-turns", &[]),
    ("cellwright-plugin-runtime", &["cellwright-cell-graph", "cellwright-fair-turns"]),
    ("cellwright-protocol", &["cellwright-cell-graph"]),
    ("cellwright-registry", &[]),
    ("cellwright-toml-faults", &[]),
    ("cellwright-plot", &[]),
    ("httpdate", &[]),
    ("cellwright-recording", &["cellwright-cell-graph", "cellwright-scheduler"]),
    (
        "cellwright-simulator",
        &["cellwright-cell-graph", "cellwright-plot", "cellwright-recording", "cellwright-scheduler", "cellwright-toml-faults"],
    ),
    ("cellwright-client", &["cellwright-cell-graph", "cellwright-protocol"]),
    ("cellwright-bundle", &["cellwright-cell-graph", "cellwright-plugin-runtime", "cellwright-protocol", "cellwright-toml-faults"]),
    (
        "cellwright-serving",
        // Of `backend` the trait, to hand devices on to the engine, and how much memory the machine has.
        &[
            "cellwright-backend",
            "cellwright-bundle",
            "cellwright-cell-graph",
            "cellwright-engine",
            "cellwright-plugin-runtime",
            "cellwright-protocol",
        ],
    ),
    (
        "cellwright-gate",
        // Of `backend` the trait, to hand devices on to `serving`; of `engine` the figures.
        &[
            "cellwright-backend",
            "cellwright-bundle",
            "cellwright-cell-graph",
            "cellwright-engine",
            "cellwright-protocol",
            "cellwright-registry",
            "cellwright-serving",
        ],
    ),
    (
        "cellwright-http-api",
        // Of `cell-graph` the tensors and descriptions that messages are made of, of `serving` the answers.
        &["cellwright-cell-graph", "cellwright-gate", "cellwright-protocol", "cellwright-registry", "cellwright-serving"],
    ),
];
/// The programs, which nothing may name.
const BINARIES: &[&str] = &["cellwright", "cellwright-lab"];
/// What the programs share. Only they may name it.
const SHARED: &str = "cellwright-command";
/// Crates that a server must not reach by any path.
const LABORATORY: &[&str] = &["cellwright-conformance", "cellwright-lab", "cellwright-simulator"];
const TESTS: &str = "cellwright-tests";

/// Foreign crates that only some of ours may name. A trailing `*` is any ending.
const OWNED: &[(&str, &[&str])] = &[
    ("wasmtime*", &["cellwright-plugin-runtime"]),
    ("wasmparser", &["cellwright-plugin-runtime"]),
    ("wasm-encoder", &["cellwright-plugin-runtime"]),
    ("wit-*", &["cellwright-plugin-runtime"]),
    ("gemm*", &["cellwright-backend-cpu"]),
    ("cudarc", &["cellwright-backend-cuda"]),
    ("safetensors", &["cellwright-bundle"]),
    ("axum*", &["cellwright-http-api"]),
    ("tower*", &["cellwright-http-api"]),
    ("tokio-rustls", &["cellwright-http-api", "cellwright-client"]),
    ("rustls-native-certs", &["cellwright-client"]),
    ("hyper*", &["cellwright-http-api", "cellwright-client"]),
    ("plotters", &["cellwright-plot"]),
    ("rusqlite", &["cellwright-registry"]),
    ("clap*", &["cellwright", "cellwright-command", "cellwright-lab"]),
    ("indicatif", &["cellwright", "cellwright-command", "cellwright-lab"]),
    ("anyhow", &["cellwright", "cellwright-command", "cellwright-lab"]),
    ("opentelemetry*", &["cellwright"]),
];

/// Foreign crates that some of ours must not reach by any path: they would bring a clock, threads, an executor, I/O or a device.
const UNREACHABLE: &[(&[&str], &[&str])] = &[
    (
        &["cellwright-cell-graph", "cellwright-scheduler", "cellwright-protocol"],
        &[
            "tokio*",
            "async-*",
            "futures*",
            "smol",
            "mio",
            "crossbeam*",
            "rayon*",
            "parking_lot*",
            "wasmtime*",
            "hyper*",
            "axum*",
            "cudarc",
            "rand",
        ],
    ),
    (
        &["cellwright-backend", "cellwright-backend-cpu", "cellwright-backend-cuda", "cellwright-engine"],
        &["tokio*", "async-*", "wasmtime*", "hyper*", "axum*", "rusqlite"],
    ),
];

/// Lines a Rust file may have before it must be split.
const FILE_LINES_MAX: usize = 600;

/// Crates and the crates each names, dev-dependencies left out; and which of them are members of the workspace.
#[derive(Debug, Default)]
struct Graph {
    names: BTreeMap<String, BTreeSet<String>>,
    members: BTreeSet<String>,
}

impl Graph {
    /// The workspace as cargo resolves it for this machine.
    fn of_workspace() -> Result<Self> {
        let host = output(Command::new("rustc").arg("-vV"))?;
        let host = host.lines().find_map(|line| line.strip_prefix("host: ")).context("`rustc -vV` names no host")?;
        let metadata = output(Command::new(env!("CARGO")).current_dir(root()).args([
            "metadata",
            "--offline",
            "--locked",
            "--format-version",
            "1",
            "--filter-platform",
            host,
        ]))?;
        Self::from_metadata(&serde_json::from_str(&metadata)?).context("`cargo metadata` has another form than expected")
    }

    fn from_metadata(metadata: &serde_json::Value) -> Option<Self> {
        let name_of: BTreeMap<&str, &str> = metadata["packages"]
            .as_array()?
            .iter()
            .map(|package| Some((package["id"].as_str()?, package["name"].as_str()?)))
            .collect::<Option<_>>()?;
        let mut graph = Self::default();
        for node in metadata["resolve"]["nodes"].as_array()? {
            let named = graph.names.entry((*name_of.get(node["id"].as_str()?)?).to_owned()).or_default();
            for dependency in node["deps"].as_array()? {
                let kinds = dependency["dep_kinds"].as_array()?;
                if kinds.iter().any(|kind| kind["kind"].as_str() != Some("dev")) {
                    named.insert((*name_of.get(dependency["pkg"].as_str()?)?).to_owned());
                }
            }
        }
        graph.members = metadata["workspace_members"]
            .as_array()?
            .iter()
            .map(|id| Some((*name_of.get(id.as_str()?)?).to_owned()))
            .collect::<Option<_>>()?;
        Some(graph)
    }

    /// Made up, for tests of the rules: `("a", &["b"])` is member a naming b.
    fn made_up(arrows: &[(&str, &[&str])]) -> Self {
        let mut graph = Self::default();
        for (from, to) in arrows {
            graph.members.insert((*from).to_owned());
            graph.names.entry((*from).to_owned()).or_default().extend(to.iter().map(|name| (*name).to_owned()));
        }
        graph
    }

    fn named_by(&self, name: &str) -> impl Iterator<Item = &String> {
        self.names.get(name).into_iter().flatten()
    }

    /// Everything on a path from that crate, and for each who brought it in.
    fn reached_from<'g>(&'g self, name: &'g str) -> BTreeMap<&'g str, &'g str> {
        let mut reached = BTreeMap::new();
        let mut open = vec![name];
        while let Some(from) = open.pop() {
            for to in self.named_by(from) {
                if !reached.contains_key(to.as_str()) {
                    reached.insert(to.as_str(), from);
                    open.push(to);
                }
            }
        }
        reached
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}

/// Arrows between our own crates that are not allowed.
fn wrong_arrows(graph: &Graph) -> Vec<String> {
    let mut wrong = Vec::new();
    for member in &graph.members {
        let allowed = ARROWS.iter().find(|(name, _)| name == member).map(|(_, allowed)| *allowed);
        let is_wiring = BINARIES.contains(&member.as_str()) || member == SHARED;
        if allowed.is_none() && !is_wiring && member != TESTS {
            wrong.push(format!("{member} has no line in ARROWS: say what it may depend on"));
        }
        for named in graph.named_by(member).filter(|name| graph.members.contains(*name)) {
            if named == TESTS || BINARIES.contains(&named.as_str()) {
                wrong.push(format!("{member} → {named}: nothing may depend on it"));
            } else if named == SHARED && !BINARIES.contains(&member.as_str()) {
                wrong.push(format!("{member} → {named}: only the programs may depend on it"));
            } else if allowed.is_some_and(|allowed| !allowed.contains(&named.as_str())) {
                wrong.push(format!("{member} → {named}: may name only {allowed:?}", allowed = allowed.unwrap_or_default()));
            }
        }
    }
    wrong
}

/// Foreign crates named by members that do not own them. Tests may name what they need to make inputs.
fn wrong_owners(graph: &Graph) -> Vec<String> {
    let mut wrong = Vec::new();
    for member in graph.members.iter().filter(|member| *member != TESTS) {
        for named in graph.named_by(member) {
            for (_, owners) in OWNED.iter().filter(|(pattern, owners)| matches(pattern, named) && !owners.contains(&member.as_str())) {
                wrong.push(format!("{member} → {named}: only {owners:?} may name it"));
            }
        }
    }
    wrong
}

/// Foreign crates that are reached by a member that must not reach them.
fn wrongly_reached(graph: &Graph) -> Vec<String> {
    let mut wrong = Vec::new();
    for (members, patterns) in UNREACHABLE {
        for member in *members {
            for (reached, by) in graph.reached_from(member) {
                if patterns.iter().any(|pattern| matches(pattern, reached)) {
                    wrong.push(format!("{member} reaches {reached} (through {by}), which it must not"));
                }
            }
        }
    }
    wrong
}

/// What is wrong with a Rust file as such.
fn wrong_form(path: &Path, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if path.file_name().is_some_and(|name| name == "mod.rs") {
        wrong.push(format!("{}: a module `x` is `x.rs`, with its children in `x/`", path.display()));
    }
    // An example is meant to be read as a whole, and is shown as it is where it belongs.
    let is_example = path.components().any(|component| component.as_os_str() == "examples");
    if !text.starts_with("//! ") && !is_example {
        wrong.push(format!("{}: does not open with a `//!` that says why it exists", path.display()));
    }
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        wrong.push(format!("{}: {lines} lines, more than {FILE_LINES_MAX}: split it", path.display()));
    }
    wrong
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    anyhow::ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Rust files under a folder, builds and hidden folders left out.
fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            rust_files(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn crates_depend_only_in_the_directions_of_the_architecture() -> Result<()> {
    let graph = Graph::of_workspace()?;
    assert!(BINARIES.iter().all(|name| graph.members.contains(*name)), "the workspace was not read: {:?}", graph.members);
    assert_none(&wrong_arrows(&graph));
    Ok(())
}

#[test]
fn foreign_crates_are_named_only_by_their_owners() -> Result<()> {
    let graph = Graph::of_workspace()?;
    assert!(graph.named_by("cellwright-plugin-runtime").any(|name| name == "wasmtime"), "the owner of wasmtime was not found");
    assert_none(&wrong_owners(&graph));
    Ok(())
}

#[test]
fn pure_crates_reach_no_clock_thread_executor_or_device() -> Result<()> {
    let graph = Graph::of_workspace()?;
    assert!(graph.reached_from("cellwright-cell-graph").contains_key("serde"), "dependencies were not followed");
    assert_none(&wrongly_reached(&graph));
    Ok(())
}

#[test]
fn the_server_holds_nothing_of_the_laboratory() -> Result<()> {
    let graph = Graph::of_workspace()?;
    assert!(graph.reached_from("cellwright-lab").contains_key("cellwright-simulator"), "dependencies were not followed");
    let reached = graph.reached_from("cellwright");
    let wrong: Vec<&&str> = LABORATORY.iter().filter(|name| reached.contains_key(**name)).collect();
    assert!(wrong.is_empty(), "the server reaches {wrong:?}");
    Ok(())
}

#[test]
fn rust_files_say_why_they_exist_and_stay_short() -> Result<()> {
    let mut files = Vec::new();
    for folder in ["host", "guest-sdk", "plugins", "tests"] {
        rust_files(&root().join(folder), &mut files)?;
    }
    assert!(files.len() > 20, "only {} files found", files.len());
    let mut wrong = Vec::new();
    for file in files {
        wrong.extend(wrong_form(file.strip_prefix(root())?, &std::fs::read_to_string(&file)?));
    }
    assert_none(&wrong);
    Ok(())
}

/// `host/ARCHITECTURE.md` stays true at least in this: it has a sentence for each crate, and for no others.
#[test]
fn every_crate_has_its_sentence_in_the_architecture_page() -> Result<()> {
    let page = std::fs::read_to_string(root().join("host/ARCHITECTURE.md"))?;
    let described: BTreeSet<String> =
        page.lines().filter_map(|line| line.strip_prefix("| `host/")?.split_once('`').map(|(folder, _)| folder.to_owned())).collect();
    let mut present = BTreeSet::new();
    for entry in std::fs::read_dir(root().join("host"))? {
        let path = entry?.path();
        if path.join("Cargo.toml").exists() {
            present.extend(path.file_name().and_then(|name| name.to_str()).map(str::to_owned));
        }
    }
    assert_eq!(described, present);
    Ok(())
}

#[test]
fn the_readme_shows_the_example_plugin_as_it_is() -> Result<()> {
    let example = std::fs::read_to_string(root().join("guest-sdk/rust/examples/classifier.rs"))?;
    let code = example.lines().skip_while(|line| line.starts_with("//!") || line.is_empty()).collect::<Vec<_>>().join("\n");
    let readme = std::fs::read_to_string(root().join("README.md"))?;
    assert!(readme.contains(&format!("```rust\n{code}\n```")), "README.md shows another plugin than guest-sdk/rust/examples/classifier.rs");
    Ok(())
}

#[test]
fn a_wrong_arrow_is_seen() {
    let graph = Graph::made_up(&[
        ("cellwright-scheduler", &["cellwright-cell-graph", "cellwright-engine"]),
        ("cellwright-engine", &["cellwright-tests"]),
        ("cellwright-tests", &["cellwright-scheduler"]),
        ("cellwright-novelty", &[]),
    ]);
    let wrong = wrong_arrows(&graph).join("\n");
    assert!(wrong.contains("cellwright-scheduler → cellwright-engine"), "{wrong}");
    assert!(wrong.contains("cellwright-engine → cellwright-tests"), "{wrong}");
    assert!(wrong.contains("cellwright-novelty has no line"), "{wrong}");
    assert_eq!(wrong.lines().count(), 3, "{wrong}");
}

#[test]
fn a_wrong_owner_is_seen() {
    let graph = Graph::made_up(&[("cellwright-serving", &["wasmtime"]), ("cellwright-bundle", &["safetensors", "wit-parser"])]);
    let wrong = wrong_owners(&graph).join("\n");
    assert!(wrong.contains("cellwright-serving → wasmtime") && wrong.contains("cellwright-bundle → wit-parser"), "{wrong}");
    assert_eq!(wrong.lines().count(), 2, "{wrong}");
}

#[test]
fn a_forbidden_crate_is_seen_through_others() {
    let graph = Graph::made_up(&[("cellwright-scheduler", &["slab"]), ("slab", &["pretty"]), ("pretty", &["tokio-util"])]);
    let wrong = wrongly_reached(&graph).join("\n");
    assert_eq!(wrong, "cellwright-scheduler reaches tokio-util (through pretty), which it must not");
}

#[test]
fn a_file_of_the_wrong_form_is_seen() {
    assert_eq!(wrong_form(Path::new("a/b.rs"), "//! Why.\n\nfn f() {}\n"), Vec::<String>::new());
    assert_eq!(wrong_form(Path::new("a/mod.rs"), &"fn f() {}\n".repeat(FILE_LINES_MAX + 1)).len(), 3);
}
