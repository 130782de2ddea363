//! Compiles the kernels for the CPU, for the emulated device of the feature `testing`, and what kernels that are compiled later begin with. Without it
//! there is nothing to build.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "testing")]
    emulation();
}

#[cfg(feature = "testing")]
fn emulation() {
    let kernels = "../../kernels";
    println!("cargo::rerun-if-changed={kernels}");
    let mut build = build(kernels);
    build.file(format!("{kernels}/emulation/emulation.cpp"));
    // A conformance suite runs through these: unoptimised they would take minutes. A kernel's multiplications and additions are fused where its source says
    // so, and nowhere else.
    build.opt_level(3);
    build.compile("cellwright_kernels");
    prelude(kernels);
}

/// Whatever is compiled for the CPU computes the same bits.
#[cfg(feature = "testing")]
fn build(kernels: &str) -> cc::Build {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++20").include(kernels).debug(false);
    build.flag_if_supported("-ffp-contract=off").flag_if_supported("-fno-strict-aliasing");
    // `#pragma unroll` is for the compiler of the device.
    build.flag_if_supported("-Wno-unknown-pragmas");
    // No other compiler's code passes a structure that is as aligned as a tensor's map.
    build.flag_if_supported("-Wno-psabi");
    // Only where it is run: another machine may lack the instruction, and without it fusing is a call.
    #[cfg(target_arch = "x86_64")]
    if std::env::var("HOST").ok() == std::env::var("TARGET").ok() && std::arch::is_x86_feature_detected!("fma") {
        build.flag_if_supported("-mfma");
    }
    build
}

/// What every kernel begins with that is compiled later: the emulation, read once. Leaves it in `compiled/` of the output folder, and tells the crate how
/// it is used.
#[cfg(feature = "testing")]
fn prelude(kernels: &str) {
    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::path::Path;

    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is");
    let kernels = Path::new(&here).join(kernels).canonicalize().expect("the kernels are there");
    let mut build = build(kernels.to_str().expect("a folder's name is text"));
    // Each of the libraries has a table of kernels of its own.
    build.flag_if_supported("-fno-gnu-unique");
    // Compiled once for each group, each of which runs a few times.
    let tool = build.opt_level(1).pic(true).warnings(false).get_compiler();
    // Kernels that were compiled of other sources are of no use, but those that run may still be on their way.
    let mut hasher = DefaultHasher::new();
    tool.args().hash(&mut hasher);
    for folder in [kernels.clone(), kernels.join("emulation")] {
        let files = std::fs::read_dir(folder).expect("the kernels are there").filter_map(|entry| entry.ok().map(|entry| entry.path()));
        let mut files: Vec<_> = files.filter(|path| path.is_file()).collect();
        files.sort();
        files.iter().for_each(|path| std::fs::read(path).expect("the kernels can be read").hash(&mut hasher));
    }
    let out = std::env::var("OUT_DIR").expect("cargo says where results go");
    let folder = Path::new(&out).join(format!("compiled-{:016x}", hasher.finish()));
    std::fs::create_dir_all(&folder).expect("the output folder can be written");
    let header = folder.join("prelude.h");
    let text = "#define EMULATION_WITHOUT_KERNELS\n#include \"emulation/emulation.cpp\"\n#include \"group_stretches.cuh\"\n";
    std::fs::write(&header, text).expect("the output folder can be written");
    let made = tool.to_command().args(["-x", "c++-header"]).arg(&header).arg("-o").arg(folder.join("prelude.h.gch")).status();
    assert!(made.is_ok_and(|status| status.success()), "the emulation's prelude does not compile");
    println!("cargo::rustc-env=CELLWRIGHT_COMPILED={}", folder.display());
    println!("cargo::rustc-env=CELLWRIGHT_CXX={}", tool.path().display());
    let flags: Vec<_> = tool.args().iter().map(|flag| flag.to_string_lossy()).collect();
    println!("cargo::rustc-env=CELLWRIGHT_CXX_FLAGS={}", flags.join("\t"));
}
