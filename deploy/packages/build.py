#!/usr/bin/env python3
"""Builds the packages of pgweir: a .deb, an .rpm, a .tar.gz and their checksums, all from one list of files.

The list is `package.metadata.deb.assets` in crates/pgweir/Cargo.toml. The same commit gives the same bytes, on any machine with the
same compiler and C library: times come from SOURCE_DATE_EPOCH, and no path of the machine is in the program.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CRATE = ROOT / "crates" / "pgweir"
KINDS = ("deb", "rpm", "tar")

# Debian's name of an architecture: Rust's target, RPM's name, the prefix of GNU's cross tools.
ARCHITECTURES = {
    "amd64": ("x86_64-unknown-linux-gnu", "x86_64", "x86_64-linux-gnu"),
    "arm64": ("aarch64-unknown-linux-gnu", "aarch64", "aarch64-linux-gnu"),
}
HOST = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())

# Tools that cargo installs, in versions whose output is known.
TOOLS = {"cargo-deb": "3.8.0", "cargo-generate-rpm": "0.21.1"}


def fail(text):
    """Ends with this message."""
    sys.exit(f"build.py: {text}")


def run(*command, **options):
    """Runs a command; it must succeed."""
    print("+", " ".join(map(str, command)), flush=True)
    if subprocess.run(command, cwd=ROOT, **options).returncode:
        fail(f"{command[0]} failed")


def output(*command):
    """What a command prints; nothing if it fails or does not exist."""
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def metadata():
    """What cargo says of the workspace, and of the program's crate."""
    text = output("cargo", "metadata", "--no-deps", "--format-version", "1", "--manifest-path", str(ROOT / "Cargo.toml"))
    whole = json.loads(text or fail("cargo metadata failed"))
    return whole, next(package for package in whole["packages"] if package["name"] == "pgweir")


def in_git():
    """True if the sources are a checkout, not an unpacked archive that lies in another project's checkout."""
    top = output("git", "rev-parse", "--show-toplevel")
    return bool(top) and Path(top).resolve() == ROOT


def version_of(described, of_cargo):
    """The version that `git describe` means: v0.2.0-5-g1a2b3c4 is 0.2.0+5.g1a2b3c4. Without a tag it is Cargo's."""
    if not described:
        return of_cargo
    words = re.fullmatch(r"v(?P<tag>\d.*?)(?:-(?P<count>\d+)-(?P<commit>g[0-9a-f]+))?(?P<dirty>-dirty)?", described)
    if not words:
        return of_cargo
    behind = [words[name].strip("-") for name in ("count", "commit", "dirty") if words[name]]
    return words["tag"] + ("+" + ".".join(behind) if behind else "")


def version(of_cargo):
    """The version of this checkout."""
    described = output("git", "describe", "--tags", "--match", "v[0-9]*", "--dirty") if in_git() else ""
    return version_of(described, of_cargo)


def package_version(text):
    """The same for dpkg and rpm, which sort a pre-release before its release only with a tilde."""
    release, plus, behind = text.partition("+")
    return release.replace("-", "~") + plus + behind


def source_date():
    """The time that stands in all files: that of the commit, or of the changelog in an unpacked archive."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    committed = output("git", "log", "-1", "--format=%ct") if in_git() else ""
    return int(committed or (ROOT / "CHANGELOG.md").stat().st_mtime)


def compile_program(arch, release, target_dir):
    """The stripped program for an architecture, without a path of this machine in it."""
    triple, _, gnu = ARCHITECTURES[arch]
    library = output("rustc", "--print", "target-libdir", "--target", triple)
    if not library or not any(Path(library).glob("libstd-*")):
        fail(
            f"no Rust standard library for {triple}. `rustup target add {triple}` installs it; Debian has it as"
            f" libstd-rust-dev:{arch}. The release workflow builds each architecture on a machine of that kind."
        )
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")).resolve()
    # The last mapping that fits counts. A registry's folder is named after its address.
    mapped = {str(home): "/cargo", str(target_dir.resolve()): "/build", str(ROOT): "/pgweir"}
    mapped |= {str(folder): "/crates" for folder in (home / "registry" / "src").glob("*")}
    flags = [f"--remap-path-prefix={path}={name}" for path, name in mapped.items()]
    environment = os.environ | {
        "PGWEIR_VERSION": release,
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags),
        "CFLAGS": " ".join(f"-ffile-prefix-map={path}={name}" for path, name in mapped.items()),
        "CARGO_INCREMENTAL": "0",
    }
    if arch != HOST:
        shutil.which(f"{gnu}-gcc") or fail(f"no {gnu}-gcc (Debian: apt-get install gcc-{gnu.replace('_', '-')})")
        name = triple.replace("-", "_")
        environment |= {f"CARGO_TARGET_{name.upper()}_LINKER": f"{gnu}-gcc", f"CC_{name}": f"{gnu}-gcc"}
    arguments = ["build", "--locked", "--profile", "dist", "--package", "pgweir", "--target", triple]
    run("cargo", *arguments, "--target-dir", target_dir, env=environment)
    program = target_dir / triple / "dist" / "pgweir"
    content = program.read_bytes()
    if arch == HOST and f"\npgweir {release}\n" not in output(str(program), "--version"):
        fail(f"the program does not say that its version is {release}")
    for path in {str(ROOT), str(home), str(Path.home())} - {"/"}:
        if path.encode() in content:
            fail(f"the program has the path {path} in it")
    return program


def tool(name):
    """The path of a tool that cargo installs, outside of the tree; it is built once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pgweir" / f"{name}-{TOOLS[name]}"
    program = cache / "bin" / name
    if not program.exists():
        # It runs once in a while: it is compiled for a fast build, not for a fast program.
        fast = {"LTO": "off", "CODEGEN_UNITS": "16", "OPT_LEVEL": "1", "DEBUG": "0"}
        environment = os.environ | {f"CARGO_PROFILE_RELEASE_{key}": value for key, value in fast.items()}
        run("cargo", "install", "--quiet", "--locked", "--root", cache, "--version", f"={TOOLS[name]}", name, env=environment)
    return program


def compressed(content):
    """The same bytes for the same content: no time and no name."""
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=packed, mtime=0) as file:
        file.write(content)
    return packed.getvalue()


def files(package, program):
    """The files of a package from the one list: place, content, mode. Manual pages and the changelog are compressed."""
    found = []
    for source, place, mode in package["metadata"]["deb"]["assets"]:
        path = program if source == "target/release/pgweir" else CRATE / source
        if place.endswith("/"):
            place += path.name
        content = path.read_bytes()
        if place.startswith("usr/share/man/") or place.endswith("/changelog"):
            place, content = place + ".gz", compressed(content)
        found.append((place, content, int(mode, 8)))
    return sorted(found)


def build_deb(arch, release, target_dir, to, program):
    """The .deb, without a Debian revision: its changelog is the project's. cargo-deb takes the program from where cargo would have put it."""
    shutil.which("dpkg-shlibdeps") or fail("no dpkg-shlibdeps, which finds the libraries that a program needs (Debian: dpkg-dev)")
    triple = ARCHITECTURES[arch][0]
    place = target_dir / triple / "dist" / "pgweir"
    arguments = ["--package", "pgweir", "--no-build", "--no-strip", "--profile", "dist", "--target", triple]
    if program != place:
        arguments.append("--fast")  # A test of the package does not need the smallest one.
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(program, place)
        place.chmod(0o755)
    name = package_version(release)
    environment = os.environ | {"CARGO_TARGET_DIR": str(target_dir)}
    run(tool("cargo-deb"), *arguments, "--deb-version", name, "--output", to / f"pgweir_{name}_{arch}.deb", env=environment)


def build_rpm(arch, release, listed, scratch, to):
    """The .rpm: cargo-generate-rpm wants its files with their modes in TOML, and their contents in files."""
    architecture = ARCHITECTURES[arch][1]
    folder = scratch / f"rpm-{arch}"
    shutil.rmtree(folder, ignore_errors=True)
    lines = [f'version = "{package_version(release)}"', "assets = ["]
    for place, content, mode in listed:
        source = folder / place
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_bytes(content)
        kind = ""
        if place.startswith("etc/"):
            kind = ', config = "noreplace"'
        elif place.startswith(("usr/share/doc/", "usr/share/man/")):
            kind = ", doc = true"
        group = "pgweir" if place.startswith("etc/pgweir/") else "root"
        lines.append(f'  {{ source = "{source}", dest = "/{place}", mode = "{mode:o}", user = "root", group = "{group}"{kind} }},')
    lines += ["]", "[requires]", *(f'"{name}" = "*"' for name in required(folder / "usr/bin/pgweir")), '"shadow-utils" = "*"']
    overwrite = folder / "files.toml"
    overwrite.write_text("\n".join(lines) + "\n")
    path = to / f"pgweir-{package_version(release)}-1.{architecture}.rpm"
    arguments = ["--package", "crates/pgweir", "--arch", architecture, "--auto-req", "no", "--metadata-overwrite", overwrite]
    run(tool("cargo-generate-rpm"), *arguments, "--output", path)


def required(program):
    """What an RPM with this program requires: the shared libraries, and the youngest version of the C library's symbols."""
    said = output("readelf", "--wide", "--dynamic", "--version-info", str(program))
    libraries = re.findall(r"\(NEEDED\).*\[(.*?)\]", said) or fail("readelf (Debian: binutils) does not read the program")
    youngest = max(re.findall(r"GLIBC_(\d+(?:\.\d+)+)", said), key=lambda text: [int(number) for number in text.split(".")])
    return [f"{name}({'GLIBC_' + youngest if name == 'libc.so.6' else ''})(64bit)" for name in libraries]


def build_tar(arch, release, listed, epoch, to):
    """The .tar.gz: the same files for /usr/local, in one folder."""
    top = f"pgweir-{release}-linux-{arch}"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for place, content, mode in listed:
            entry = tarfile.TarInfo(f"{top}/{place.removeprefix('usr/')}")
            entry.size, entry.mode, entry.mtime = len(content), mode, epoch
            entry.uname = entry.gname = "root"
            archive.addfile(entry, io.BytesIO(content))
    (to / f"{top}.tar.gz").write_bytes(compressed(packed.getvalue()))


def write_checksums(release, to):
    """SHA256SUMS of this version's packages in the folder, of all architectures, for `sha256sum --check`."""
    begins = tuple(f"pgweir{text}" for name in (release, package_version(release)) for text in (f"_{name}_", f"-{name}-"))
    packages = sorted(path for path in to.iterdir() if path.name.startswith(begins))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in packages]
    (to / "SHA256SUMS").write_text("".join(lines))
    print("".join(lines), end="")


def arguments_of(words):
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", choices=ARCHITECTURES, default=HOST, help=f"architecture ({HOST})")
    parser.add_argument("--only", choices=KINDS, action="append", help="only this kind; can be given more than once")
    parser.add_argument("--output", type=Path, help="folder for the packages (target/packages)")
    parser.add_argument("--program", type=Path, help="package this program instead of building one; the tests use it")
    parser.add_argument("--release-version", help="version instead of that of git; the tests use it")
    parser.add_argument("--install-tool", choices=TOOLS, help="only install this tool of cargo, if it is not there")
    parser.add_argument("--print-version", action="store_true", help="print the version and end")
    parser.add_argument("--release", action="store_true", help="refuse a checkout that is not exactly a tagged version")
    return parser.parse_args(words)


def main():
    """See the module's head."""
    options = arguments_of(sys.argv[1:])
    if options.install_tool:
        return tool(options.install_tool)
    whole, package = metadata()
    release = options.release_version or version(package["version"])
    if options.print_version:
        return print(release)
    if options.release and (not in_git() or release != package["version"] or not output("git", "describe", "--exact-match", "--tags")):
        fail(f"a release needs a clean checkout of the tag v{package['version']}, the version in Cargo.toml; this is {release}")
    target_dir = Path(whole["target_directory"])
    to = (options.output or target_dir / "packages").resolve()
    to.mkdir(parents=True, exist_ok=True)
    epoch = source_date()
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    build_dir = target_dir / "packages-build"
    program = options.program.resolve() if options.program else compile_program(options.arch, release, build_dir)
    kinds = options.only or KINDS
    listed = files(package, program)
    if "deb" in kinds:
        build_deb(options.arch, release, build_dir, to, program)
    if "rpm" in kinds:
        build_rpm(options.arch, release, listed, build_dir, to)
    if "tar" in kinds:
        build_tar(options.arch, release, listed, epoch, to)
    write_checksums(release, to)


if __name__ == "__main__":
    main()
