#!/usr/bin/env bash
# Prints the hash of everything a workspace of guests is built from: `plugins/hash.sh [WORKSPACE]` (default: plugins). Needs no Wasm toolchain.
# Tests are no part of it. Builds differ by compiler and folder, so prebuilt components are compared by what they were built from.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
workspace=${1:-plugins}

{
    find "$workspace" \( -name target -o -name prebuilt -o -name tests -o -name answers \) -prune -o -type f \( -name '*.rs' -o -name '*.toml' -o -name Cargo.lock \) -print
    find guest-sdk/wit plugins/encode/src -type f
    printf '%s\n' plugins/encode/Cargo.toml plugins/Cargo.lock plugins/{build,hash,toolchain}.sh
    # Only of guests that are written with the SDK.
    if grep -rq --include=Cargo.toml --exclude-dir=target cellwright-guest "$workspace"; then
        find guest-sdk/rust/src guest-sdk/rust/Cargo.toml -type f
    fi
} | LC_ALL=C sort -u | xargs -d '\n' sha256sum | sha256sum | cut -d ' ' -f 1
