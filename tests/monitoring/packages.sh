# Sourced by the scripts of this folder, at the top of the project: it fetches the distribution's packages and unpacks them into
# .cache/monitoring without installing them. No service is started, and root is not needed.

target=.cache/monitoring

# Starts a folder for the packages. $1 names what they are, for the message where the distribution has no packages of this kind.
begin() {
    if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
        echo "missing: $1 as packages of Debian or Ubuntu" >&2
        exit 1
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/packages"
}

# Runs apt-get in the folder of the packages; its options come first.
fetch() {
    (cd "$work/packages" && apt-get -q "$@" >>"$work/log" 2>&1)
}

# Downloads the packages that are named. The list of packages may be old or not there at all; as root it can be made again.
download() {
    fetch download "$@" || { [ "$(id -u)" = 0 ] && apt-get -q update >/dev/null && fetch download "$@"; } || fail
}

# Ends the script with what apt-get has said.
fail() {
    cat "$work/log" >&2
    exit 1
}

unpack() {
    mkdir -p "$target"
    for package in "$work"/packages/*.deb; do dpkg-deb -x "$package" "$target"; done
}
