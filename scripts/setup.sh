#!/usr/bin/env bash
# Sets up everything Tidegate needs in this checkout: a virtual environment with pinned packages, a Java,
# Spark's Delta jars. Repeatable: what is there already is checked, not made again. Leaves .venv/bin/tidegate.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv
readonly STAMP=$VENV/setup.stamp
readonly STEPS=4
readonly LOG_TAIL_LINES=15
# Debian 12 has 17, Debian 13 has 21; the oldest that Spark runs on comes first.
readonly JAVA_PACKAGES="openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless"

child=
log=$(mktemp "${TMPDIR:-/tmp}/tidegate-setup.XXXXXX.log")
trap 'rm -f "$log"' EXIT
trap 'stop 130' INT
trap 'stop 143' TERM

stop() {
  if [ -n "$child" ]; then kill -- "-$child" 2>/dev/null || true; wait "$child" 2>/dev/null || true; fi
  printf '\nSet-up was interrupted; run it again and it goes on.\n' >&2
  exit "$1"
}

# step NUMBER TITLE HINT COMMAND…: runs the command with its output in the log and shows how long it takes.
step() {
  local number=$1 title=$2 hint=$3 start=$SECONDS result=0
  local line="[$number/$STEPS] $title …"
  shift 3
  : >"$log"
  printf '%s' "$line"
  # A process group of its own, so that an interrupt can end the command and all that it started.
  set -m
  "$@" </dev/null >"$log" 2>&1 9<&- &
  child=$!
  set +m
  while kill -0 "$child" 2>/dev/null; do
    if [ -t 1 ] && ((SECONDS > start)); then printf '\r%s %d s' "$line" $((SECONDS - start)); fi
    sleep 0.1
  done
  wait "$child" || result=$?
  child=
  if [ -t 1 ]; then printf '\r%s' "$line"; fi
  if [ "$result" -eq 0 ]; then
    printf ' done (%d s)%s\n' $((SECONDS - start)) "$(note)"
  else
    printf ' FAILED (%d s)\n' $((SECONDS - start))
    explain "$title" "$hint"
  fi
}

# A command says what it found on a line "note> …" of its log.
note() { sed -n 's/^note> /: /p' "$log" | tail -n 1; }

# A command that knows better what to do says so on a line "do> …".
advice() { sed -n 's/^do> //p' "$log" | tail -n 1 | grep .; }

explain() {
  trap - EXIT
  {
    printf '\nSet-up stopped at: %s\nWhy:\n' "$1"
    grep -vE '^\s*$|^do> ' "$log" | tail -n "$LOG_TAIL_LINES" | sed -E 's/^(.{240}).+/\1…/; s/^/  | /'
    printf 'What to do: %s\nFull log: %s\n' "$(advice || echo "$2")" "$log"
  } >&2
  exit 1
}

is_root() { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; }

apt_install() { DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$1"; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
  local name
  for name in python3 python3.11 python3.12 python3.13; do
    if command -v "$name" >/dev/null && is_new_enough "$name"; then command -v "$name"; return; fi
  done
  echo "None of python3, python3.11, python3.12 and python3.13 on PATH is Python 3.11 or newer."
  echo "python3 is: $(python3 --version 2>&1 || true)"
  echo "do> apt-get install python3 python3-venv (Debian 12 or newer), then run this again."
  return 1
}

make_environment() {
  if is_new_enough "$VENV/bin/python" && "$VENV/bin/python" -m pip --version; then return; fi
  local python
  python=$(find_python) || { echo "$python"; return 1; }
  if ! "$python" -c 'import ensurepip, venv'; then
    local package
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    echo "$python has no venv module."
    echo "do> apt-get install python3-venv (or $package) as root, then run this again."
    is_root || return 1
    apt-get update
    apt_install "$package"
  fi
  "$python" -m venv --clear "$VENV"
  echo "note> $("$VENV/bin/python" --version)"
}

# What the installed packages depend on. The place counts: an environment that was moved does not run.
stamp_key() {
  {
    cat constraints.txt constraints-test.txt pyproject.toml
    pwd
    "$VENV/bin/python" --version
  } 2>&1 | sha256sum
}

is_installed() {
  [ -x "$VENV/bin/tidegate" ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$(stamp_key)" ]
}

install_packages() {
  if is_installed; then return; fi
  rm -f "$STAMP"
  local pip=("$VENV/bin/python" -m pip --disable-pip-version-check install)
  # What comes over the network must have the hash that the checkout names; the package itself is here.
  "${pip[@]}" --require-hashes -r constraints.txt -r constraints-test.txt &&
    "${pip[@]}" --no-deps --no-build-isolation -e . || return 1
  stamp_key >"$STAMP.new"
  mv "$STAMP.new" "$STAMP"
}

provide_java() {
  local found package
  if found=$("$VENV/bin/python" -m tidegate.pipeline.java); then echo "note> $found"; return; fi
  if ! is_root; then
    echo "do> apt-get install openjdk-17-jre-headless as root, or unpack a newer Java and set JAVA_HOME."
    return 1
  fi
  apt-get update
  for package in $JAVA_PACKAGES; do
    if apt-cache show "$package" >/dev/null 2>&1; then apt_install "$package"; break; fi
  done
  found=$("$VENV/bin/python" -m tidegate.pipeline.java) && echo "note> $found"
}

provide_jars() {
  local found
  found=$("$VENV/bin/python" -m tidegate.pipeline.jars) && echo "note> $found"
}

# Looks without fetching anything.
is_ready() {
  is_installed && "$VENV/bin/python" -m tidegate.pipeline.java &&
    "$VENV/bin/python" -m tidegate.pipeline.jars --check
}

# Two at once in one checkout would install over each other; the second waits.
if command -v flock >/dev/null; then
  exec 9<"${BASH_SOURCE[0]}"
  flock -n 9 || { echo "Another set-up runs in this checkout; waiting for it."; flock 9; }
fi

if is_ready >/dev/null 2>&1; then
  echo "Set-up: all there."
  exit 0
fi

step 1 "Python environment" "Read the log; remove .venv and run this again." make_environment
step 2 "Python packages" "Check the connection to a package index (pip's settings apply), then try again." \
  install_packages
step 3 "Java" "Install a Java 17 or newer and set JAVA_HOME, then run this again." provide_java
step 4 "Spark's Delta jars" "See docs/start/install.md, 'Without a network'." provide_jars
echo "Ready: $VENV/bin/tidegate"
