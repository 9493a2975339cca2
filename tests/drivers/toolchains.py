"""Builds the batteries of other languages, once per change of their sources, into the repository's .cache."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.machine import CACHE

HERE = Path(__file__).resolve().parent
BUILT = CACHE / "drivers"

PGJDBC = "org.postgresql:postgresql:42.7.14"
PGJDBC_SHA256 = "73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c"
COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


def need(*programs):
    """Skips the test, by name of what is missing, when the toolchain is not there."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def run(*command, folder, **environment):
    """One build step; its output is the fault when it fails."""
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True, env=os.environ | environment)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}", pytrace=False)


def once(name, build):
    """Runs `build(target folder)` unless it was done for these very sources; safe with several test processes."""
    BUILT.mkdir(parents=True, exist_ok=True)
    files = sorted(path for path in (HERE / name).rglob("*") if path.is_file() and not {"node_modules", "target"} & set(path.parts))
    digest = hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in [*files, Path(__file__)])).hexdigest()
    target, stamp = BUILT / name, BUILT / f"{name}.stamp"
    with open(BUILT / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != digest:
            target.mkdir(exist_ok=True)
            build(target)
            stamp.write_text(digest)
    return target


def go():
    """The command that runs the pgx battery."""
    need("go")
    target = once("go", lambda target: run("go", "build", "-mod=readonly", "-o", str(target / "battery"), ".", folder=HERE / "go"))
    return [str(target / "battery")]


def node():
    """The command that runs the node-postgres battery. Its packages are installed beside it: that is where node looks."""
    need("node", "npm")
    once("node", lambda _: run("npm", "ci", "--ignore-scripts", "--loglevel=error", folder=HERE / "node"))
    if not (HERE / "node" / "node_modules").exists():
        (BUILT / "node.stamp").unlink()
        return node()
    return ["node", str(HERE / "node" / "battery.mjs")]


def java(program="Battery"):
    """The command that runs the pgjdbc battery, or another program beside it."""
    need("java", "javac", "mvn")

    def build(target):
        run("mvn", "-q", "-B", COPY_GOAL, f"-Dartifact={PGJDBC}", f"-DoutputDirectory={target}", folder=target)
        jar = next(target.glob("postgresql-*.jar"))
        assert hashlib.sha256(jar.read_bytes()).hexdigest() == PGJDBC_SHA256, "the jar is not the one that was pinned"
        programs = [path.name for path in (HERE / "java").glob("*.java")]
        run("javac", "-encoding", "UTF-8", "-cp", str(jar), "-d", str(target), *programs, folder=HERE / "java")

    target = once("java", build)
    jar = next(target.glob("postgresql-*.jar"))
    return ["java", "-Xshare:auto", "-cp", f"{target}:{jar}", program]


def rust():
    """The command that runs the tokio-postgres battery."""
    need("cargo")
    target = once("rust", lambda target: run("cargo", "build", "--locked", "--quiet", "-j2", folder=HERE / "rust", CARGO_TARGET_DIR=str(target)))
    return [str(target / "debug" / "driver-tokio-postgres")]
