#!/usr/bin/env bash
# Builds probe.wat from probe.c, as user_scripts/text-stats-wasi/build.sh does (same packages).
set -euo pipefail
cd "$(dirname "$0")"
module=$(mktemp --suffix=.wasm)
trap 'rm -f "$module"' EXIT
clang --target=wasm32 -Oz -std=c11 -Layer -Wextra -Werror -nostdlib -ffreestanding -fno-builtin \
    -Wl,--no-entry -Wl,--strip-all -Wl,-z,stack-size=65536 -o "$module" probe.c
{
    echo ";; Made from probe.c by build.sh; change that file, not this one."
    wasm2wat "$module"
} > probe.wat
