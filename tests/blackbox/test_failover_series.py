"""One switchover, one killed primary and one frozen one under load: what clients were told agrees with the database. `make failover-series` has many."""

import pytest

from failover.series import options_of, run


@pytest.mark.parametrize("discovery", ["sql", "patroni"])
def test_ledgers_agree_with_the_database(discovery):
    """Nothing is lost, doubled or wrongly told. In a switchover no transaction fails, and no client is disconnected."""
    words = ["--discovery", discovery, "--switchovers", "1", "--kills", "1", "--clients", "8", "--ledgers", "8"]
    (planned, _, killed, _), faults = run(options_of(words))
    assert not faults
    assert [len(planned.rounds), len(killed.rounds)] == [1, 1]
    for one in planned.rounds:
        assert (one.failed, one.disconnected) == (0, 0)
        assert one.verdict.told["committed"] == sum(one.verdict.told.values())


def test_synchronous_replication_loses_nothing():
    """What the killed primary had acknowledged is there, without exception."""
    words = ["--discovery", "sql", "--switchovers", "0", "--kills", "1", "--clients", "8", "--ledgers", "8", "--synchronous"]
    (_, _, killed, _), faults = run(options_of(words))
    assert not faults
    assert not [one.verdict.behind_fork for one in killed.rounds if one.verdict.behind_fork]


@pytest.mark.parametrize("more", [[], ["--synchronous"], ["--commit-outcome", "exact"]], ids=["async", "sync", "exact"])
def test_a_deposed_primary_that_wakes_up_is_not_believed(more):
    """Nothing that it commits then is told to a client. What it had acknowledged before it hung may be lost without a synchronous standby."""
    words = ["--discovery", "sql", "--switchovers", "0", "--kills", "0", "--freezes", "1", "--clients", "8", "--ledgers", "8", *more]
    (*_, frozen), faults = run(options_of(words))
    assert not faults
    assert len(frozen.rounds) == 1
    if "--synchronous" in more:
        assert not [one.verdict.behind_fork for one in frozen.rounds if one.verdict.behind_fork]
