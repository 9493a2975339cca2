#!/bin/bash
# Whether the pooler answers: it replies to a request for TLS with one letter, whatever it is configured to do.
# The port is the argument, or what the environment says, or 6432.
set -euo pipefail
port=${1:-${PGWEIR_LISTEN_PORT:-${LISTEN_PORT:-${PGBOUNCER_LISTEN_PORT:-${PGBOUNCER_PORT:-6432}}}}}
case $port in *[!0-9]*) port=6432 ;; esac
exec 3<>"/dev/tcp/127.0.0.1/$port"
printf '\0\0\0\10\4\322\26\57' >&3
read -r -t 2 -N 1 answer <&3
[[ $answer == [SN] ]]
