#!/bin/sh
# Brings together what the tests need: the distribution's PostgreSQL, the other majors (tests/pg), a browser and what
# drives it (tests/browser), Prometheus (tests/monitoring), and the Python packages.
#
# Quick when everything is there. As root on Debian or Ubuntu it installs what is missing; otherwise it says in one line
# what is missing and ends with 1.
set -eu
cd "$(dirname "$0")"
root=$(cd .. && pwd)

missing=""
command -v pgbench >/dev/null && command -v psql >/dev/null && ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 \
    || missing="$missing postgresql postgresql-client postgresql-contrib"
command -v openssl >/dev/null || missing="$missing openssl"
command -v npm >/dev/null || missing="$missing npm"
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || missing="$missing chromium fonts-dejavu-core"
command -v python3 >/dev/null || missing="$missing python3"
python3 -c 'import venv, ensurepip' 2>/dev/null || missing="$missing python3-venv"
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get -q update
        # shellcheck disable=SC2086  # a list of words on purpose
        DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends $missing
    else
        echo "missing: install$missing (Debian: apt-get install$missing)" >&2
        exit 1
    fi
fi

pg/install.sh
browser/install.sh
monitoring/install.sh
monitoring/pgbadger.sh || echo "pgBadger could not be fetched: its test is skipped" >&2
packaging/install.sh
kubernetes/install.sh

# OpenLDAP's server: some tests are skipped without it. It is not to be started by its installation.
if ! [ -x /usr/sbin/slapd ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends slapd ||
        echo "slapd could not be installed: tests of LDAP are skipped" >&2
fi

# Debian's PgBouncer: the tests hold the console's tables against it. Not started by its installation either.
if ! [ -x /usr/sbin/pgbouncer ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends pgbouncer ||
        echo "pgbouncer could not be installed: the comparison with it is skipped" >&2
fi

# etcd: Patroni keeps its state there. Not started by its installation either.
if ! [ -x /usr/bin/etcd ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends etcd-server etcd-client ||
        echo "etcd could not be installed: tests of Patroni are skipped" >&2
fi

# HAProxy and keepalived: pairs of poolers. Not started by their installation either.
if ! { [ -x /usr/sbin/haproxy ] && [ -x /usr/sbin/keepalived ] && [ -x /usr/bin/curl ]; } && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends haproxy keepalived curl ||
        echo "haproxy and keepalived could not be installed: tests of pairs are skipped" >&2
fi

venv="$root/.cache/venv"
want=$(cksum < requirements.txt)
if [ ! -x "$venv/bin/pytest" ] || [ "$(cat "$venv/.ready" 2>/dev/null)" != "$want" ]; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement requirements.txt
    printf '%s\n' "$want" > "$venv/.ready"
fi

pg/tools.sh || echo "pg_basebackup of some PostgreSQL versions could not be installed: their tests of pgweir node are skipped" >&2
