#!/bin/sh
# Runs the black-box and driver tests. Arguments go to pytest: `tests/run.sh blackbox/test_copy.py -k big`, `--slow`.
#
# POOLER       the binary under test; without it the release build of this repository is made and used
# POOLER_KIND  pgweir or pgbouncer (read off the name otherwise)
# JOBS         test processes side by side (4)
set -eu
case "${POOLER:-/}" in
/*) ;;
*) POOLER="$PWD/$POOLER" ;;
esac
cd "$(dirname "$0")"
./setup.sh
if [ -z "${POOLER:-}" ]; then
    cargo build --quiet --release -p pgweir
    target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
    POOLER="$target/release/pgweir"
    export POOLER
fi
exec ../.cache/venv/bin/pytest -q -n "${JOBS:-4}" --dist worksteal "$@"
