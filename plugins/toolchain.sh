#!/usr/bin/env bash
# Makes a Rust compiler with a wasm32-unknown-unknown standard library where rustup cannot add that target: `plugins/toolchain.sh DIR`, then
# `. DIR/env.sh` for guest builds only. Takes about a minute and 140 MB; needs Debian 12 or later with an up-to-date package index, cargo, and
# a rustup toolchain (for its linker). Nothing is installed outside of DIR, and root is not needed.
#
# Debian packages a current compiler for browsers (rustc-web) together with the sources of its standard library and their dependencies. The
# packages are unpacked, not installed; the standard library is then compiled for wasm32 and put where that compiler looks for it.
set -euo pipefail
mkdir -p "${1:?usage: plugins/toolchain.sh DIR}"
dir=$(cd "$1" && pwd)
target=wasm32-unknown-unknown

fail() {
    echo "error: $*" >&2
    exit 1
}

# The first package that PACKAGE depends on and whose name begins so: names carry versions.
dependency() {
    apt-cache depends "$1" 2> /dev/null | sed -n "s/.*Depends: \($2[^ ]*\).*/\1/p" | head -n 1
}

unpack_packages() {
    local std llvm package
    std=$(dependency libstd-rust-web-dev libstd-rust-web-)
    [[ -n $std ]] || fail "this system's package index has no rustc-web: add the target by \`rustup target add $target\`, or run \`apt-get update\`"
    llvm=$(dependency "$std" libllvm)
    mkdir -p "$dir/packages" "$dir/root"
    (cd "$dir/packages" && apt-get download -q rustc-web rust-web-src libstd-rust-web-dev "$std" ${llvm:+"$llvm"})
    for package in "$dir"/packages/*.deb; do
        case $package in
            # Only the library's sources: the rest is the compiler's own.
            */rust-web-src_*) dpkg-deb --fsys-tarfile "$package" | tar -x -C "$dir/root" --wildcards './usr/src/rustc-*/library' './usr/lib/rustlib/src' ;;
            *) dpkg-deb -x "$package" "$dir/root" ;;
        esac
    done
    rm -rf "$dir/packages"
}

write_environment() {
    local linker
    linker=$(find "$(rustc --print sysroot)/lib/rustlib" -path '*/bin/rust-lld' | head -n 1)
    [[ -n $linker ]] || fail "no rust-lld in $(rustc --print sysroot): a rustup toolchain has one"
    local libraries
    libraries=$(dirname "$(find "$dir/root" -name 'librustc_driver-*.so' | head -n 1)")
    cat > "$dir/environment" << END
export RUSTC='$dir/root/usr/bin/rustc'
export LD_LIBRARY_PATH='$libraries'
export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER='$linker'
END
}

# The standard library, as the dependency of an empty crate, from its own sources and theirs: no registry is asked.
build_library() {
    local sources crate=$dir/library
    sources=$(echo "$dir"/root/usr/src/rustc-*/library)
    mkdir -p "$crate/src" "$crate/.cargo"
    : > "$crate/src/lib.rs"
    cat > "$crate/Cargo.toml" << 'END'
[package]
name = "library"
version = "0.0.0"
edition = "2024"

[workspace]

[profile.release]
panic = "abort"
END
    cat > "$crate/.cargo/config.toml" << END
[source.crates-io]
replace-with = "debian"
[source.debian]
directory = '$sources/vendor'
END
    (
        . "$dir/environment"
        cd "$crate"
        # Bitcode lets guests be optimized together with the library. build-std is not a stable option.
        unset CARGO_TARGET_DIR
        RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Cembed-bitcode=yes CARGO_NET_OFFLINE=true \
            cargo build --quiet --release -Zbuild-std=std,panic_abort --target $target
    )
    local installed=$dir/root/usr/lib/rustlib/$target/lib
    mkdir -p "$installed"
    find "$crate/target/$target/release/deps" -name '*.rlib' ! -name 'liblibrary-*' -exec cp -t "$installed" {} +
    rm -rf "$crate"
}

unpack_packages
write_environment
build_library
# Last, so that its presence says that all of the above is there.
mv "$dir/environment" "$dir/env.sh"
