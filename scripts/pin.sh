#!/usr/bin/env bash
# Writes the two files of pinned packages, each version with the hashes of its files: constraints.txt has
# what the package needs to run, constraints-test.txt what only tests, lint and builds need beside it.
# Versions that are pinned already stay; with --upgrade each becomes the newest that pyproject.toml allows.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly RUN=constraints.txt TEST=constraints-test.txt
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT

python3 -m venv "$tools/venv"
"$tools/venv/bin/python" -m pip install --quiet --disable-pip-version-check uv==0.13.8
{ cat "$RUN" "$TEST" 2>/dev/null || true; } |
  sed -nE 's/^([A-Za-z0-9_.-]+==[^ ;]+).*/\1/p' >"$tools/pinned.txt"
if [ "${1:-}" = --upgrade ]; then : >"$tools/pinned.txt"; fi

compile() {
  "$tools/venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-annotate --no-header "$@"
}

compile pyproject.toml --constraints "$tools/pinned.txt" -o "$tools/run.txt"
compile pyproject.toml --extra dev --constraints "$tools/pinned.txt" --constraints "$tools/run.txt" \
  -o "$tools/all.txt"
"$tools/venv/bin/python" - "$tools/run.txt" "$tools/all.txt" >"$tools/test.txt" <<'PY'
# Print the entries of the second file whose package the first does not have. An entry goes to the next pin.
import re
import sys

run, everything = (re.split(r"^(?=\S)", open(name).read(), flags=re.MULTILINE) for name in sys.argv[1:])
names = {entry.partition("==")[0] for entry in run}
sys.stdout.write("".join(entry for entry in everything if entry.partition("==")[0] not in names))
PY
mv "$tools/run.txt" "$RUN"
mv "$tools/test.txt" "$TEST"
echo "$RUN: $(grep -c == "$RUN") packages, $TEST: $(grep -c == "$TEST") more"
