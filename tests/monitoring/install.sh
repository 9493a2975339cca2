#!/bin/sh
# Brings Prometheus, promtool, postgres_exporter and Debian's exporter for PgBouncer (with the Python packages it needs) from the
# distribution's packages into .cache/monitoring, without installing them: no service is started, and root is not needed. Does
# nothing when they are there.
set -eu
cd "$(dirname "$0")/../.."
target=.cache/monitoring
python=$target/usr/lib/python3/dist-packages
if [ -x "$target/usr/bin/prometheus" ] && [ -x "$target/usr/bin/promtool" ] && [ -x "$target/usr/bin/prometheus-postgres-exporter" ] &&
    [ -d "$python/prometheus_pgbouncer_exporter" ] && [ -d "$python/psycopg2" ] && [ -d "$python/prometheus_client" ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "missing: prometheus and its exporters as packages of Debian or Ubuntu" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fetch() {
    apt-get -q download prometheus prometheus-postgres-exporter \
        prometheus-pgbouncer-exporter python3-psycopg2 python3-prometheus-client python3-decorator >"$work/log" 2>&1
}
# The list of packages may be old or not there at all; as root it can be made anew.
fetch || { [ "$(id -u)" = 0 ] && apt-get -q update >/dev/null && fetch; } || { cat "$work/log" >&2; exit 1; }
cd - >/dev/null
mkdir -p "$target"
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$target"; done
