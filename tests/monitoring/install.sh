#!/bin/sh
# Brings Prometheus, promtool, postgres_exporter and Debian's exporter for PgBouncer (with the Python packages it needs) from the
# distribution's packages into .cache/monitoring. Does nothing when they are there.
set -eu
cd "$(dirname "$0")/../.."
. tests/monitoring/packages.sh
python=$target/usr/lib/python3/dist-packages
if [ -x "$target/usr/bin/prometheus" ] && [ -x "$target/usr/bin/promtool" ] && [ -x "$target/usr/bin/prometheus-postgres-exporter" ] &&
    [ -d "$python/prometheus_pgbouncer_exporter" ] && [ -d "$python/psycopg2" ] && [ -d "$python/prometheus_client" ]; then
    exit 0
fi
begin "Prometheus and its exporters"
download prometheus prometheus-postgres-exporter \
    prometheus-pgbouncer-exporter python3-psycopg2 python3-prometheus-client python3-decorator
unpack
