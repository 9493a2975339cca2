#!/bin/sh
# Brings pgBadger and the Perl module with which it writes JSON from the distribution's packages into .cache/monitoring, without
# installing them. PgBouncer's statistics line of today is known to pgBadger since 13.1: where the distribution has an older one,
# Debian 13's is taken, which runs with any Perl. Does nothing when they are there.
set -eu
cd "$(dirname "$0")/../.."
target=.cache/monitoring
if [ -x "$target/usr/bin/pgbadger" ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "missing: pgBadger as a package of Debian or Ubuntu" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
packages=$work/packages
mkdir "$packages"

# Downloads the packages, from another release of Debian with the further options.
fetch() {
    (cd "$packages" && apt-get -q "$@" >>"$work/log" 2>&1)
}
candidate() {
    apt-cache policy pgbadger | sed -n 's/^ *Candidate: //p'
}

perl="libjson-xs-perl libcommon-sense-perl libtypes-serialiser-perl"
# The list of packages may be old or not there at all; as root it can be made anew.
# shellcheck disable=SC2086  # a list of words on purpose
fetch download $perl || { [ "$(id -u)" = 0 ] && apt-get -q update >/dev/null && fetch download $perl; } || { cat "$work/log" >&2; exit 1; }
if dpkg --compare-versions "$(candidate)" ge 13.1; then
    fetch download pgbadger || { cat "$work/log" >&2; exit 1; }
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
    { debian13 update && debian13 download pgbadger; } || { cat "$work/log" >&2; exit 1; }
fi
mkdir -p "$target"
for package in "$packages"/*.deb; do dpkg-deb -x "$package" "$target"; done
