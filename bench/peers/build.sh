#!/bin/sh
# Builds the workers of bench/peers/go and bench/peers/rust on their SDKs, of which clones are given; "" leaves one out.
#
#   build.sh OUT GO_SDK RUST_SDK    makes OUT/go-worker, OUT/rust-worker
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)

if [ -n "$2" ]; then
    sdk=$(cd "$2" && pwd)
    mkdir -p "$out/go"
    cp "$here/go/worker.go" "$out/go"
    cd "$out/go"
    printf 'module worker\n\nreplace github.com/openjobspec/ojs-go-sdk => %s\n' "$sdk" >go.mod
    go mod tidy
    go build -ldflags=-s -o ../go-worker .
fi
if [ -n "$3" ]; then
    sdk=$(cd "$3" && pwd)
    mkdir -p "$out/rust/src"
    cp "$here/rust/worker.rs" "$out/rust/src/main.rs"
    cd "$out/rust"
    cat >Cargo.toml <<END
[package]
name = "rust-worker"
version = "0.1.0"
edition = "2021"
[dependencies]
ojs = { path = "$sdk" }
libc = "0.2"
serde_json = "1"
tokio = { version = "1", features = ["full"] }
END
    cargo build --release
    cp target/release/rust-worker "$out"
fi
