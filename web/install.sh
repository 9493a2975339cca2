#!/bin/sh
# Installs what building and testing the page needs, into node_modules. Quick when nothing has changed.
set -eu
cd "$(dirname "$0")"
stamp=node_modules/.ready
want=$(cksum < package-lock.json)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    exit 0
fi
command -v npm >/dev/null || { echo "web: npm is missing (Debian: apt-get install npm)" >&2; exit 1; }
npm ci --loglevel=error
printf '%s\n' "$want" > "$stamp"
