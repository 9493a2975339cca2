#!/bin/sh
# Brings Prometheus, promtool and postgres_exporter from the distribution's packages into .cache/monitoring, without installing
# them: no service is started, and root is not needed. Does nothing when they are there.
set -eu
cd "$(dirname "$0")/../.."
target=.cache/monitoring
if [ -x "$target/usr/bin/prometheus" ] && [ -x "$target/usr/bin/promtool" ] && [ -x "$target/usr/bin/prometheus-postgres-exporter" ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "missing: prometheus and prometheus-postgres-exporter as packages of Debian or Ubuntu" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fetch() { apt-get -q download prometheus prometheus-postgres-exporter >"$work/log" 2>&1; }
# The list of packages may be old or not there at all; as root it can be made anew.
fetch || { [ "$(id -u)" = 0 ] && apt-get -q update >/dev/null && fetch; } || { cat "$work/log" >&2; exit 1; }
cd - >/dev/null
mkdir -p "$target"
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$target"; done
