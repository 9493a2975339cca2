"""A short series of faults of two poolers under load: no acknowledged change is lost, and the series counts what it should count."""

import os

import pytest

from failover import ledger
from failover.pairs import Series, options_of, outages, overlap, run
from harness.pair import HAPROXY, KEEPALIVED
from harness.patroni import needed
from harness.pooler import kind


@pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer has neither vip nor /readyz")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces")
@pytest.mark.parametrize(
    "way, faults, clients_hit",
    [("hosts", "kill,restart", [True, False]), ("haproxy", "kill", [True]), ("keepalived", "machine", [True]), ("vip", "cut,drain", [True, True])],
)
def test_nothing_is_lost(way, faults, clients_hit):
    """The bars for times are for the whole series; here the machine may be slow."""
    missing = {"haproxy": HAPROXY is None, "keepalived": KEEPALIVED is None}
    if missing.get(way):
        pytest.skip(f"{way} is not installed (tests/setup.sh installs it)")
    if way == "vip":
        needed()
    played, found = run(options_of(["--ways", way, "--only", faults, "--rounds", "1", "--clients", "20"]), [])
    assert not [text for text in found if "p99" not in text]
    assert [len(series.rounds) for series in played] == [1] * len(clients_hit)
    assert [bool(series.back_s()) for series in played] == clients_hit
    assert all(series.rounds[0].verdict.told[ledger.COMMITTED] > 20 for series in played)


def change(began_s, told_s, told=ledger.COMMITTED):
    return ledger.Change(1, 1, began_s, told, told_s)


def test_an_outage_begins_with_the_first_failure():
    """And ends with the next acknowledged change; a failure before the fault is none."""
    refused, unknown = "refused", ledger.UNKNOWN
    assert outages([change(0, 1), change(2, 3)], fault_s=1.5) == []
    assert outages([change(0, 1, unknown), change(2, 3)], fault_s=1.5) == []
    assert outages([change(1, 2, unknown), change(2, 3, refused), change(3, 4), change(4, 5)], fault_s=1.5) == [2.5]
    assert outages([change(2, 3, unknown), change(3, 4), change(5, 6, unknown), change(6, 9)], fault_s=1.5) == [2, 4]


def test_the_time_in_which_two_have_the_address():
    """It counts from a moment on."""
    assert overlap([(0, 5)], [(5, 9)], 0) == 0
    assert overlap([(0, 5), (8, 9)], [(4, 10)], 0) == 2
    assert overlap([(0, 5), (8, 9)], [(4, 10)], 4.5) == 1.5


def test_a_bar_that_is_missed():
    """By more than one client of a hundred."""
    series = Series("vip", "kill", bar_s=4)
    assert not series.misses()

    class One:
        back_s = [1.0] * 99 + [5.0]

    series.rounds = [One]
    assert series.misses()
    One.back_s = [1.0] * 100 + [5.0]
    assert not series.misses()
