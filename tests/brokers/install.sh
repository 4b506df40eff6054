#!/usr/bin/env bash
# install.sh FOLDER: TrustGraph's own code of two releases, each in an environment of its own, for tests that look for it in
# $TOOLHOST_TEST_TRUSTGRAPH. 2.7.13 is the newest one whose agents call tool services; later ones speak otherwise to brokers.
set -euo pipefail
folder=${1:?name a folder}
for release in 2.7.13 2.11.1; do
    [ -x "$folder/$release/bin/python" ] && "$folder/$release/bin/python" -c 'import trustgraph.agent.react' 2> /dev/null && continue
    python3 -m venv "$folder/$release"
    "$folder/$release/bin/pip" install --quiet "trustgraph-base==$release"
    # Of the agents only the code that calls tools is used, and none of what it requires.
    "$folder/$release/bin/pip" install --quiet --no-deps "trustgraph-flow==$release"
done
