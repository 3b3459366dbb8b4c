#!/usr/bin/env bash
# Gives the tests of pages a browser: Debian's Chromium, where none is there and this user may install it.
# Without one those tests are skipped and say so, so nothing here stops the others.

set -u

for name in chromium chromium-browser google-chrome google-chrome-stable; do
  command -v "$name" >/dev/null && exit 0
done
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "No Chromium: the tests of pages are skipped. As root, apt-get install chromium lets them run."
  exit 0
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
printf 'A browser for the tests of pages …'
if DEBIAN_FRONTEND=noninteractive timeout 300 bash -c \
  'apt-get update && apt-get install -y --no-install-recommends chromium' </dev/null >"$log" 2>&1; then
  echo " done: $(command -v chromium)"
else
  echo " not installed; those tests are skipped. The end of apt-get's words:"
  tail -3 "$log"
fi
