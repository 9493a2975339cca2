"""Several processes as one pooler: they share a port, know each other as peers, and are replaced one after the other."""

import threading

import pytest

from harness.machine import eventually, free_port
from harness.wire import Raw, cancel_request, query

pytestmark = pytest.mark.needs("peers")


@pytest.fixture
def group(pooled):
    """A function that writes a group of poolers which know each other. None is started yet."""

    def start(count, **settings):
        members = [pooled(start=False, peer_id=number + 1, **settings) for number in range(count)]
        lines = [f"{number + 1} = host={member.folder} port={member.port}" for number, member in enumerate(members)]
        for member in members:
            member.ini_tail = "\n".join(["[peers]", *lines, ""])
            member.write_ini()
        return members

    return start


def cancel_at(address, session):
    """Sends the session's CancelRequest to another address and waits until it was dealt with."""
    with Raw(address) as other:
        other.send(cancel_request(session.pid, session.key))
        assert other.until_closed().messages == []


def test_a_cancel_request_at_another_process(group, pg):
    """A cancel request reaches its statement whichever process receives it, over TCP and over the unix socket."""
    one, other = group(2)
    one.start()
    other.start()
    with one.raw() as session:
        for address in (other.address, other.unix_address, one.address):
            session.send(query("select pg_sleep(30)"))
            eventually(lambda: pg.running("pg_sleep(30)"), "the statement runs")
            cancel_at(address, session)
            assert session.until("Z").error["C"] == "57014"
        assert session.value("select 1") == "1"
    assert [row["peer_id"] for row in one.show("PEERS")] == ["1", "2"]
    assert one.show("PEERS")[1]["host"] == str(other.folder)
    assert {tuple(row.values()) for row in other.show("PEER_POOLS")} == {("1", "0", "0", "0", "0"), ("2", "0", "0", "0", "0")}


def test_a_peer_that_is_gone(group):
    """No process answers for the peer: the request ends without a word, and everything goes on."""
    one, other = group(2)
    one.start()
    other.start()
    with one.raw() as session, other.raw() as survivor:
        session.send(query("select pg_sleep(1.0), 'done'"))
        assert session.quiet(0.1)
        one.signal(9)
        one.expect_exit = True
        one.process.wait()
        cancel_at(other.address, session)
        assert survivor.value("select 1") == "1"


def test_requests_do_not_go_round(group):
    """Two processes that each hold the other for the key's owner: the request is dropped after three hops."""
    one, other = group(2)
    one.ini_tail = f"[peers]\n3 = host={other.folder} port={other.port}\n"
    other.ini_tail = f"[peers]\n3 = host={one.folder} port={one.port}\n"
    for member in (one, other):
        member.write_ini()
        member.start()
    with Raw(one.address) as requester:
        requester.send(cancel_request(0x11_03_00_11, b"\x01\x02\x03\xff"))
        assert requester.until_closed().messages == []
    eventually(lambda: (one.log() + other.log()).count("went round too often") == 1, "one of them says so")


def test_rolling_restart(group, pg):
    """Three processes on one port are replaced in turn while clients come and go: no client sees an error."""
    port = free_port()
    members = group(3, so_reuseport=1, listen_port=port)
    for number, member in enumerate(members):
        member.port = port
        member.ini_tail = "".join(f"\n{n + 1} = host={m.folder} port={port}" for n, m in enumerate(members)).join(["[peers]", "\n"])
        member.write_ini(pidfile=str(member.folder / "pid"))
        member.start()
        eventually(lambda: (member.folder / f".s.PGSQL.{port}").exists(), f"member {number} is up")  # noqa: B023
    stop, faults, rounds = threading.Event(), [], [0] * 4

    def come_and_go(who):
        while not stop.is_set():
            try:
                with members[0].raw() as session:
                    for _ in range(3):
                        assert session.value("select 7") == "7"
                    session.terminate()
                rounds[who] += 1
            except Exception as fault:
                faults.append(repr(fault))
                return

    workers = [threading.Thread(target=come_and_go, args=(who,)) for who in range(4)]
    for worker in workers:
        worker.start()
    for member in members * 2:
        before = sum(rounds)
        old, member.expect_exit = member.process, True
        over_unix = Raw(member.unix_address)
        over_unix.login("admin", "pgbouncer", "pw-of-admin")
        over_unix.query("SHUTDOWN WAIT_FOR_CLIENTS")
        over_unix.hang_up()
        assert old.wait(timeout=20) == 0
        member.start(wait=False)
        eventually(lambda: sum(rounds) > before + 20 or faults, "clients go on", timeout_s=30)  # noqa: B023
        eventually(lambda: (member.folder / f".s.PGSQL.{port}").exists(), "it is up again")  # noqa: B023
        member.expect_exit = False
    stop.set()
    for worker in workers:
        worker.join()
    assert not faults, faults


def test_cancel_requests_under_load(group, pg):
    """Three processes behind one port: cancel requests arrive at any of them, and hit the statement that they are for, and no other."""
    port = free_port()
    members = group(3, so_reuseport=1, listen_port=port, default_pool_size=8)
    for member in members:
        member.port = port
        member.ini_tail = "\n".join(["[peers]", *(f"{n + 1} = host={m.folder} port={port}" for n, m in enumerate(members)), ""])
        member.write_ini()
        member.start()
    stop, faults, hit = threading.Event(), [], []

    def bystander():
        with members[0].raw() as session:
            while not stop.is_set():
                answer = session.query("select 1 from pg_sleep(0.001)")
                if answer.errors:
                    faults.append(answer.errors)

    def victim():
        for _ in range(8):
            with members[0].raw() as session:
                session.send(query("select pg_sleep(100)"))
                session.socket.settimeout(0.2)
                while True:
                    session.cancel()
                    try:
                        hit.append(session.until("Z").error["C"])
                        break
                    except TimeoutError:
                        continue  # it came before the statement did
                session.socket.settimeout(20)
                if session.value("select 7") != "7":
                    faults.append("a session after a cancel")

    others = [threading.Thread(target=bystander) for _ in range(4)]
    victims = [threading.Thread(target=victim) for _ in range(4)]
    for thread in others + victims:
        thread.start()
    for thread in victims:
        thread.join()
    stop.set()
    for thread in others:
        thread.join()
    assert not faults and hit == ["57014"] * 32
