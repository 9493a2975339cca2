"""Fixtures for all tests: one cluster of each major version per test process, poolers that are checked when a test ends."""

import shutil
import subprocess

import pytest

from harness import cluster as clusters
from harness.abilities import missing
from harness.cluster import PASSWORDS
from harness.machine import scratch_folder
from harness.pooler import Pooler, binary, kind, version
from harness.tls import Certificates
from harness.wire import Raw


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run the tests that take minutes or gigabytes")


def pytest_report_header():
    return f"pooler: {kind()} {binary()} (version {'.'.join(map(str, version()))})"


def pytest_collection_modifyitems(config, items):
    this_kind, this_version = kind(), version()
    for item in items:
        way = item.callspec.params.get("talk") if hasattr(item, "callspec") else None
        for mark in item.iter_markers("needs"):
            for ability in mark.args:
                if way in ("direct", "session"):
                    continue  # what is passed through unseen cannot be missing
                reason = missing(ability, this_kind, this_version)
                if reason:
                    item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow; runs with tests/run.sh --slow"))


@pytest.fixture(scope="session")
def certificates():
    """The session's certificates."""
    folder = scratch_folder("tls")
    yield Certificates(folder / "files")
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def cluster_of(certificates):
    """A function: the running cluster of a major version, started when first asked for."""
    running = {}

    def get(major):
        if clusters.program(major, "postgres") is None:
            pytest.skip(f"PostgreSQL {major} is not installed (tests/setup.sh installs it)")
        if major not in running:
            running[major] = clusters.Cluster(major, certificates)
        return running[major]

    yield get
    for one in running.values():
        one.discard()


@pytest.fixture
def pg(cluster_of):
    """The distribution's PostgreSQL, without sessions left over from the test before; a test leaves in it nothing that changes others."""
    server = cluster_of(clusters.DISTRIBUTION)
    server.end_all_backends()
    before = server.shared_state()
    yield server
    assert server.shared_state() == before, "the test changed the server for those behind it"


@pytest.fixture
def bench(pg):
    """A database with pgbench's tables at scale 1."""
    if not pg.sql("select 1 from pg_database where datname = 'bench'"):
        pg.sql("create database bench owner alice")
        command = ["pgbench", "-i", "-q", "-s", "1", "-h", "127.0.0.1", "-p", str(pg.port), "-U", "alice", "bench"]
        subprocess.run(command, check=True, capture_output=True)
    return pg


@pytest.fixture(params=["12", "13", "14", "16", "17", "18"])
def pg_other(request, cluster_of):
    """PostgreSQL of each of the other major versions in turn."""
    server = cluster_of(request.param)
    server.end_all_backends()
    return server


@pytest.fixture
def pg18(cluster_of):
    """PostgreSQL 18: protocol 3.2, longer cancel keys."""
    server = cluster_of("18")
    server.end_all_backends()
    return server


@pytest.fixture
def poolers():
    """A function that starts poolers; each is stopped and checked for crashes when the test ends."""
    started = []

    def start(databases, **options):
        pooler = Pooler(databases, **options)
        started.append(pooler)
        return pooler

    yield start
    faults = [fault for pooler in started for fault in pooler.finish()]
    assert not faults, "\n".join(faults)


@pytest.fixture
def pooled(poolers, pg):
    """A function that starts a pooler in front of the distribution's PostgreSQL, with databases app, app2 and app3."""

    def start(databases=None, **options):
        lines = {name: pg.at(name) for name in ("app", "app2", "app3")} | (databases or {})
        return poolers(lines, **options)

    return start


@pytest.fixture(params=["direct", "transaction", "session"])
def talk(request, pooled, pg):
    """A function that opens raw sessions as alice on app: with PostgreSQL itself, and through the pooler in two modes.

    Whatever such a test expects is PostgreSQL's own behaviour, and the first of the three proves the expectation.
    """
    if request.param == "direct":
        yield from _direct(pg)
    else:
        pooler = pooled(pool_mode=request.param, default_pool_size=3)
        sessions = []

        def start(user="alice", database="app", **startup):
            sessions.append(pooler.raw(database, user, **startup))
            return sessions[-1]

        yield start
        for session in sessions:
            session.hang_up()


def _direct(pg):
    sessions = []

    def start(user="alice", database="app", **startup):
        session = Raw(("127.0.0.1", pg.port))
        session.login(user, database, PASSWORDS.get(user), **startup)
        sessions.append(session)
        return session

    yield start
    for session in sessions:
        session.hang_up()
