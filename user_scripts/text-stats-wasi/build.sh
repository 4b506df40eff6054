#!/usr/bin/env bash
# Builds text_stats.wat from text_stats.c. Needs clang, wasm-ld (lld) and wasm2wat (wabt):
#   apt-get install -y --no-install-recommends clang lld wabt
# The text form is kept in the repository, so that the tool works in a fresh clone and can be read before it runs.
# A .wasm file works as well: leave out the last step and write its name into the manifest's scriptPath.
set -euo pipefail
cd "$(dirname "$0")"
module=$(mktemp --suffix=.wasm)
trap 'rm -f "$module"' EXIT
clang --target=wasm32 -Oz -std=c11 -Wall -Wextra -Werror -nostdlib -fno-builtin \
    -Wl,--no-entry -Wl,--strip-all -Wl,-z,stack-size=16384 -o "$module" text_stats.c
{
    echo ";; Made from text_stats.c by build.sh; change that file, not this one."
    wasm2wat "$module"
} > text_stats.wat
