#!/bin/sh
# The page's own tests: types, unit tests, and that dist/ is what a build of these sources gives.
set -eu
cd "$(dirname "$0")"
./seal check
./install.sh
npm run --silent types
npm test --silent
npm run --silent build:again -- --logLevel warn
if ! diff -r dist "node_modules/.cache/dist"; then
    echo "web/dist is not what its sources build. Run make web, and commit web/dist." >&2
    exit 1
fi
