#!/bin/sh
# Copies programs into a directory with the shared libraries that they need, and nothing else of their packages: psql's would bring a
# wrapper and Perl. The C library is left out, as each image has its own.
# Usage: tools.sh DIRECTORY PROGRAM...
set -eu
out=$1
shift
mkdir -p "$out/usr/bin"
for program; do
    cp -L "$program" "$out/usr/bin/"
    ldd "$program" | awk '$3 ~ /^\// { print $3 }' | while read -r library; do
        case ${library##*/} in
        libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libresolv.so.*) continue ;;
        esac
        # /lib is a link to /usr/lib in Debian's image.
        folder=$out$(realpath "$(dirname "$library")")
        mkdir -p "$folder"
        cp -L "$library" "$folder/"
    done
done
