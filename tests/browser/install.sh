#!/bin/sh
# Installs what drives the browser, into node_modules. The browser itself is the distribution's Chromium (tests/setup.sh).
set -eu
cd "$(dirname "$0")"
stamp=node_modules/.ready
want=$(cksum < package-lock.json)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    exit 0
fi
npm ci --ignore-scripts --loglevel=error
printf '%s\n' "$want" > "$stamp"
