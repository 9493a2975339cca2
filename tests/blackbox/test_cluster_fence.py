"""A primary that hangs, is deposed and wakes up: nothing that it commits then is told to a client."""

import pytest
from harness.machine import eventually
from harness.wire import Closed, query
from test_clusters import clustered, node_states, nodes, shown  # noqa: F401 (fixtures)

COMMITTED, ROLLED_BACK, UNKNOWN = "committed", "rolled back", "unknown"


class Client:
    """A session with a change of its own, and what it was told of that."""

    def __init__(self, pooler, who, database, way):
        self.who, self.way = who, way
        self.raw = pooler.raw(database=database, timeout_s=60)
        if way != "single":
            self.raw.query("begin")
            assert not self.raw.query(self.insert).errors
            # Behind the answer to the question for the transaction's number.
            self.raw.query("select 1")

    @property
    def insert(self):
        return f"insert into changes values ('{self.who}', 1)"

    def sends(self):
        """The message that makes the change last."""
        self.raw.send(query(self.insert if self.way == "single" else "commit"))

    def told(self):
        """What the answer to that says."""
        try:
            answer = self.raw.until()
        except Closed as end:
            answer = end
            codes = [m.fields()["C"] for m in end.seen if m.tag == "E"]
            return ROLLED_BACK if codes and codes[-1] == "40001" else UNKNOWN
        codes = [error["C"] for error in answer.errors]
        if codes:
            assert codes in (["40001"], ["08007"]), (self.who, answer.errors)
            return ROLLED_BACK if codes == ["40001"] else UNKNOWN
        return COMMITTED


DATABASES = {
    "app": "cluster=main commit_outcome=on",
    "exact": "cluster=main dbname=app commit_outcome=exact",
    "off": "cluster=main dbname=app commit_outcome=off",
    "session": "cluster=main dbname=app pool_mode=session",
}


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_a_primary_that_wakes_up_is_not_believed(nodes, poolers, sync):  # noqa: F811
    """COMMIT and single changes: sent before it hung, while it hung, and after it woke up."""
    two = nodes(2)
    old, new = two.all
    watch = {"check_interval_ms": 100, "check_timeout_ms": 300, "down_after_ms": 30_000, "primary_max_age_ms": 3000}
    pooler = poolers(DATABASES, ini_tail=two.ini(**watch), default_pool_size=30, workers=2)
    eventually(lambda: node_states(pooler) == {"m1": "primary", "m2": "standby"}, "both nodes are known")
    if sync:
        old.sql("alter system set synchronous_standby_names = '*'")
        old.sql("select pg_reload_conf()")
        eventually(lambda: old.sql("select sync_state from pg_stat_replication") == [("sync",)], "the standby is synchronous")
    ways = [(database, way) for database in DATABASES for way in ("hung", "woken", "single", "hung", "woken")]
    clients = [Client(pooler, f"{number} {' '.join(names)}", *names) for number, names in enumerate(ways)]
    with old.frozen(whole=True):
        for client in clients:
            if client.way != "woken":
                client.sends()
        eventually(lambda: node_states(pooler)["m1"] == "unsure" or shown(pooler)["primary"] is None, "it is missed", timeout_s=30)
        new.promote()
        eventually(lambda: shown(pooler)["primary"] == "m2", "the new primary is known", timeout_s=30)
        late = [client for client in clients if client.way == "woken"]
        late[0].sends()
    for client in late[1:]:
        client.sends()
    told = {client.who: client.told() for client in clients}
    there = {who for (who,) in new.sql("select who from changes")}
    assert not [who for who, word in told.items() if word == COMMITTED and who not in there], told
    assert not [who for who, word in told.items() if word == ROLLED_BACK and who in there], told
    for client in late:
        assert told[client.who] == ROLLED_BACK, (client.who, "its COMMIT was not sent")
    assert not [who for who in told if " exact " in who and told[who] == UNKNOWN], told
    for client in clients:
        client.raw.hang_up()
