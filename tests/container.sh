#!/usr/bin/env bash
# tests/container.sh [TOOLHOST]: the layers in a container with the profile of docs/setup, by Podman. As root, on a machine
# with podman and runc; CI has neither. Judges from what comes out of the container; the control is the runtime's own profile.
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
toolhost=$(realpath "${1:-$repository/target/debug/toolhost}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

# An image of this machine's own programs.
root=$work/root
mkdir -p "$root"/{usr,etc,tmp,var,proc,sys,dev,run,srv,tools,home}
chmod 1777 "$root/tmp"
for link in bin lib lib64 sbin; do [ -L "/$link" ] && cp -a "/$link" "$root/"; done
cp /etc/passwd /etc/group /etc/ld.so.cache "$root/etc/"

# A tool that asks for a file that it was not granted.
tools=$work/tools
mkdir -p "$tools"/{tool-defs,user_scripts/ask,sandbox-policies}
cat > "$tools/user_scripts/ask/ask.py" << 'PY'
import json
try:
    with open("/etc/hostname") as file:
        print(json.dumps(file.read()))
except OSError as refused:
    print(json.dumps(type(refused).__name__))
PY
cat > "$tools/user_scripts/ask/ask.tool.json" << 'JSON'
{"toolId": "c:ask", "displayName": "Ask", "description": "Asks for a file.", "version": "1.0.0",
 "handler": {"type": "external-script", "language": "python", "scriptPath": "ask/ask.py"}, "parameters": {"type": "object"}}
JSON

# inside PROFILE ARGUMENT…: toolhost in a container, as an ordinary user without capabilities.
inside() {
    local profile=$1
    shift
    podman --runtime runc --cgroup-manager cgroupfs run --rm --network none --user 1000:1000 --cap-drop ALL \
        --ulimit nofile=4096:4096 --ulimit nproc=4096:4096 --security-opt no-new-privileges \
        ${profile:+--security-opt "seccomp=$profile"} --security-opt unmask=ALL -e HOME=/tmp \
        -v /usr:/usr:ro -v "$toolhost:/srv/toolhost:ro" -v "$repository:/srv/repository:ro" -v "$tools:/tools:ro" \
        --rootfs "$root" /srv/toolhost "$@" 2>&1 || true
}

failed=0
expect() {
    local what=$1 words=$2 said
    shift 2
    said=$(inside "$@")
    if grep -qF -- "$words" <<< "$said"; then
        echo "ok   $what"
    else
        echo "FAIL $what: no \"$words\" in:"
        sed 's/^/     /' <<< "$said"
        failed=1
    fi
}

ours=$repository/docs/setup/docker-seccomp.json
expect 'control: without the profile nothing runs' 'CapabilityError' '' --root /tools call c:ask
expect 'doctor: every layer stands' '"tier": "A"' "$ours" --root /srv/repository doctor --json
expect 'a Python tool runs' '"rows":5' "$ours" --root /srv/repository call data:csv-summary file=sales.csv
expect 'a Node tool runs' '"words":1' "$ours" --root /srv/repository call text:stats-node text=hello
expect 'a WASI tool runs' '"words":1' "$ours" --root /srv/repository call text:stats-wasi text=hello
expect 'a file of the container is not there' 'FileNotFoundError' "$ours" --root /tools call c:ask
expect 'and it is told which' 'read /etc/hostname' "$ours" --root /tools call c:ask --explain
expect 'a tool with hosts has its network' 'names no name server' "$ours" --root /srv/repository call web:weather latitude=1 longitude=2
exit $failed
