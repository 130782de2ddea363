//! Compiles the kernels for the CPU, for the emulated device of the feature `testing`. Without it there is nothing to build.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "testing")]
    emulation();
}

#[cfg(feature = "testing")]
fn emulation() {
    let kernels = "../../kernels";
    println!("cargo::rerun-if-changed={kernels}");
    let mut build = cc::Build::new();
    build.cpp(true).std("c++20").include(kernels).file(format!("{kernels}/emulation/emulation.cpp"));
    // A conformance suite runs through these: unoptimised they would take minutes. A kernel's multiplications and additions are fused where its source says
    // so, and nowhere else.
    build.opt_level(3).debug(false).flag_if_supported("-ffp-contract=off").flag_if_supported("-fno-strict-aliasing");
    // `#pragma unroll` is for the compiler of the device.
    build.flag_if_supported("-Wno-unknown-pragmas");
    // Only where it is run: another machine may lack the instruction, and without it fusing is a call.
    #[cfg(target_arch = "x86_64")]
    if std::env::var("HOST").ok() == std::env::var("TARGET").ok() && std::arch::is_x86_feature_detected!("fma") {
        build.flag_if_supported("-mfma");
    }
    build.compile("cellwright_kernels");
}
