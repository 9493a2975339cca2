#!/bin/sh
# Brings pgBadger and the Perl module with which it writes JSON from the distribution's packages into .cache/monitoring. PgBouncer's
# statistics line of today is known to pgBadger since 13.1: where the distribution has an older one, Debian 13's is taken, which runs
# with any Perl. Does nothing when they are there.
set -eu
cd "$(dirname "$0")/../.."
. tests/monitoring/packages.sh
if [ -x "$target/usr/bin/pgbadger" ]; then
    exit 0
fi
begin pgBadger
download libjson-xs-perl libcommon-sense-perl libtypes-serialiser-perl
if dpkg --compare-versions "$(apt-cache policy pgbadger | sed -n 's/^ *Candidate: //p')" ge 13.1; then
    download pgbadger
else
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    # The archive that this machine has its other packages from.
    archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep '/debian/*$' | head -n 1)
    [ -e "$keys" ] && [ -n "$archive" ] || { echo "missing: pgBadger 13.1, or Debian's archive to fetch it from" >&2; exit 1; }
    mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
    echo "deb [signed-by=$keys] $archive trixie main" > "$work/apt/sources.list"
    debian13() {
        fetch -o "Dir::Etc::SourceList=$work/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$work/apt/lists" \
            -o "Dir::Cache=$work/apt/cache" -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::Languages=none "$@"
    }
    { debian13 update && debian13 download pgbadger; } || fail
fi
unpack
