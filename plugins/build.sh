#!/usr/bin/env bash
# Builds a workspace of guests into components.
#
#   plugins/build.sh [WORKSPACE]             builds WORKSPACE (default: plugins) into WORKSPACE/prebuilt
#   plugins/build.sh --out DIR [WORKSPACE]   builds into DIR
#   plugins/build.sh --check [WORKSPACE]     fails unless WORKSPACE/prebuilt was built from the sources as they are; needs no Wasm toolchain
#
# The wasm32 target is rustup's where it can be had, else made by toolchain.sh (into $CELLWRIGHT_TOOLCHAIN, default: target/wasm-toolchain).
set -euo pipefail
caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
target=wasm32-unknown-unknown

fail() {
    echo "error: $*" >&2
    exit 1
}

mode=build out=
case ${1:-} in
    --check) mode=check; shift ;;
    --out) out=$(cd "$caller" && realpath -m "${2:?--out needs a folder}"); shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' plugins/build.sh; exit ;;
    -*) echo "error: unknown option $1; known are --check, --out DIR and --help" >&2; exit 2 ;;
esac
workspace=${1:-plugins}
[[ -f $workspace/Cargo.toml ]] || fail "$workspace is no workspace of guests: it has no Cargo.toml"
prebuilt=$workspace/prebuilt
sums=$prebuilt/SOURCES.sha256

# The plugins of the workspace, as "NAME CRATE": its members that are dynamic libraries.
guests() {
    local manifest
    for manifest in "$workspace"/*/Cargo.toml; do
        grep -q cdylib "$manifest" || continue
        echo "$(basename "$(dirname "$manifest")") $(sed -n 's/^name = "\(.*\)"$/\1/p' "$manifest" | head -n 1 | tr - _)"
    done
}

check() {
    local name crate rebuild="run plugins/build.sh${1:+ $1} and commit $prebuilt"
    [[ -f $sums ]] || fail "$sums is missing: $rebuild"
    grep -qx "$(plugins/hash.sh "$workspace")  sources" "$sums" \
        || fail "the components in $prebuilt were built from other sources than these: $rebuild"
    while read -r name crate; do
        [[ -f $prebuilt/$name.wasm ]] || fail "$prebuilt/$name.wasm is missing: $rebuild"
        grep -qx "$(sha256sum < "$prebuilt/$name.wasm" | cut -d ' ' -f 1)  $name.wasm" "$sums" \
            || fail "$prebuilt/$name.wasm is not what the build left there: $rebuild"
    done < <(guests)
}

has_target() {
    local libraries
    libraries=$(rustc --print target-libdir --target $target 2> /dev/null) && compgen -G "$libraries/libcore-*.rlib" > /dev/null
}

find_toolchain() {
    has_target && return
    rustup target add $target 2> /dev/null && has_target && return
    local made=${CELLWRIGHT_TOOLCHAIN:-$root/target/wasm-toolchain}
    [[ -f $made/env.sh ]] || plugins/toolchain.sh "$made"
    # shellcheck source=/dev/null
    . "$made/env.sh"
}

# A small stack makes a fresh instance cheap: its pages are what the host must map. Paths of this machine stay out of panic messages. How
# guests are optimized stands here, so that their native tests need not wait for it.
build_guests() {
    local cargo_home=${CARGO_HOME:-$HOME/.cargo}
    unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS
    local flags="['--cfg=getrandom_backend=\"custom\"', '-Clink-arg=-zstack-size=65536', '--remap-path-prefix=$root/=', '--remap-path-prefix=$cargo_home/registry/src/=']"
    export CARGO_PROFILE_RELEASE_{OPT_LEVEL=3,LTO=true,CODEGEN_UNITS=1,PANIC=abort,STRIP=true}
    (cd "$workspace" && cargo build --release --locked --target $target --config "target.$target.rustflags=$flags")
}

build() {
    local name crate built into=${out:-$prebuilt}
    built=$(cd "$caller" && realpath -m "${CARGO_TARGET_DIR:-$root/$workspace/target}")
    export CARGO_TARGET_DIR=$built
    mkdir -p "$into"
    cargo build --release --locked --manifest-path plugins/Cargo.toml -p encode
    (find_toolchain && build_guests)
    while read -r name crate; do
        "$built/release/encode" "$built/$target/release/$crate.wasm" "$into/$name.wasm"
    done < <(guests)
    {
        echo "$(plugins/hash.sh "$workspace")  sources"
        while read -r name crate; do
            echo "$(sha256sum < "$into/$name.wasm" | cut -d ' ' -f 1)  $name.wasm"
        done < <(guests)
    } > "$into/SOURCES.sha256"
    ls -l "$into"
}

if [[ $mode == check ]]; then check "$@"; else build; fi
