#!/bin/sh
# Brings what the test of the packages needs: a minimal Debian or Ubuntu in .cache/packaging/root, the release of this machine, and
# cargo-deb. Needs root; without it, or on another system, it says so and the test is skipped. Does nothing when they are there.
set -eu
cd "$(dirname "$0")/../.."
root=.cache/packaging/root
if [ -e "$root.ready" ]; then
    exec deploy/packages/build.py --install-tool cargo-deb
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "a minimal Debian needs root and apt-get: the test of the packages is skipped" >&2
    exit 0
fi
mkdir -p "$root"
log=$root.log
install_packages() {
    DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends debootstrap dpkg-dev
}
{
    { command -v debootstrap && command -v dpkg-shlibdeps; } || install_packages || { apt-get -q update && install_packages; }
    # shellcheck disable=SC1091  # it is there on every such system
    . /etc/os-release
    # The archive that this machine installs from.
    # shellcheck disable=SC2016  # apt's own variables
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' | grep " $VERSION_CODENAME main\$" | cut -d ' ' -f 1 | head -1)
    rm -rf "$root"
    debootstrap --variant=minbase --include=adduser "$VERSION_CODENAME" "$root" "$mirror"
} >"$log" 2>&1 || {
    tail -5 "$log" >&2
    echo "a minimal Debian could not be made: the test of the packages is skipped" >&2
    exit 0
}
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
touch "$root.ready"
exec deploy/packages/build.py --install-tool cargo-deb
