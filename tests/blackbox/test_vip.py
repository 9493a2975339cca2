"""`vip`: of several poolers, the one that holds a lease in etcd has the address. Each pooler has a network namespace on a bridge, and no right but
two capabilities; etcd is real."""

import json
import os
import select
import shutil
import signal
import subprocess
import time

import pytest

from harness.machine import eventually, scratch_folder
from harness.network import ADDRESS, EtcdOnBridge, Network, run
from harness.pair import HTTP_PORT, VIP_RIGHTS, Machine
from harness.pooler import kind

pytestmark = [
    pytest.mark.skipif(kind() != "pgweir", reason="PgBouncer has no such setting"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces"),
]

TTL_S = 3


class Vips(Network):
    """Two machines with poolers. etcd and the clients are in the hub."""

    def __init__(self):
        super().__init__(kind=Machine)
        self.machines = self.hosts
        self.etcd = None

    def build(self):
        super().build()
        self.etcd = EtcdOnBridge(self)

    def destroy(self):
        for machine in self.machines:
            machine.end()
        if self.etcd:
            self.etcd.discard()
        super().destroy()

    def selects(self, address=ADDRESS):
        """The answer to a new client at the address."""
        conninfo = f"host={address} port=6432 dbname=app user=alice password=pw-of-alice connect_timeout=2"
        done = subprocess.run(["ip", "netns", "exec", self.hub, "psql", "-XAtc", "select 7", conninfo], capture_output=True, text=True)
        return done.stdout == "7\n"


class Session:
    """A client that stays connected, at the virtual address unless another one is named."""

    def __init__(self, network, address=ADDRESS):
        conninfo = f"host={address} port=6432 dbname=app user=alice password=pw-of-alice connect_timeout=10"
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", network.hub, "psql", "-XAtq", conninfo],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
        )
        assert self.asks() == "7"

    def asks(self):
        self.process.stdin.write(b"select 7;\n")
        answers, _, _ = select.select([self.process.stdout], [], [], 60)
        assert answers, "the client hangs"
        return self.process.stdout.readline().decode().strip()

    def locks(self):
        """Begins a transaction that has a lock."""
        self.process.stdin.write(b"begin; select pg_advisory_xact_lock(7);\n")
        assert self.asks() == ""
        assert self.process.stdout.readline().decode().strip() == "7"

    def sleeps(self):
        """Begins a statement that lasts for longer than any test."""
        self.process.stdin.write(b"select pg_sleep(1000);\n")

    def is_told(self):
        """The error that psql shows for its next statement after its connection was ended."""
        self.process.stdin.write(b"select 8;\n")
        self.process.stdin.close()
        return self.process.stdout.read().decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def network():
    """A network without poolers."""
    one = Vips()
    try:
        one.build()
        yield one
    finally:
        one.destroy()


@pytest.fixture
def start(network, poolers, pg):
    """A function that starts a pooler on each machine; it returns the one that has the address, and the other one."""

    def make(vip=f"{ADDRESS}/24", wait=True, capabilities=VIP_RIGHTS, **settings):
        for machine in network.machines:
            # A unix socket of PostgreSQL is reached from every namespace; ports are each namespace's own.
            where = f"host={pg.folder} port={pg.port} dbname=app"
            words = {"listen_addr": "*", "http_listen": f"[::]:{HTTP_PORT}", "vip": vip, "vip_ttl": TTL_S, "etcd_endpoints": network.etcd.url}
            machine.use(poolers({"app": where}, start=False, **{**words, **settings}))
            machine.start(capabilities)
        if not wait:
            return network.machines
        for machine in network.machines:
            eventually(machine.is_up, "the pooler has asked etcd")
        address = vip.split("/")[0]
        holder = eventually(lambda: next((one for one in network.machines if network.only(one, address)), None), "one has the address")
        other = next(one for one in network.machines if one is not holder)
        eventually(lambda: holder.vip()["state"] == "holds" and other.vip()["lease"] == "other", "both know it")
        return holder, other

    return make


def lasts(seconds, check, what):
    """Checks something again and again for as long as the test is about."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert check(), what
        time.sleep(0.05)


@pytest.mark.parametrize("vip", [f"{ADDRESS}/24", "fd78::9/64"])
def test_the_address_leaves_a_killed_pooler(network, start, vip):
    """Clients reach the other pooler when the lease has ended; the kernel has removed the address of the dead process."""
    address = vip.split("/")[0]
    holder, other = start(vip=vip)
    assert holder.vip()["interface"] == holder.link
    assert holder.vip()["holder"] == other.vip()["holder"] and f":{HTTP_PORT}" in holder.vip()["holder"]
    eventually(lambda: network.selects(address), "clients are served")
    before = network.mac(address)
    began_s = time.monotonic()
    holder.kill()
    eventually(lambda: other.has(address), "the other one has the address")
    print(f"the address of a killed pooler moved after {time.monotonic() - began_s:.2f} s, vip_ttl is {TTL_S} s")
    eventually(lambda: network.only(other, address), "the kernel has removed the address of the dead process")
    eventually(lambda: network.mac(address) not in (None, before), "the announcement was heard")
    eventually(lambda: network.selects(address), "clients are served again")
    # The one that comes back does not take it.
    holder.start()
    eventually(lambda: holder.is_up() and holder.vip()["lease"] == "other", "the first one is back")
    assert network.only(other, address)


@pytest.mark.parametrize("vip", [f"{ADDRESS}/24", "fd78::9/64"])
def test_the_kernel_keeps_the_address_longer_than_the_lease_lasts(network, start, vip):
    """So the machine of a dead process refuses new clients until the other pooler has the address. Without an answer they would try again
    too late."""
    holder, _ = start(vip=vip)
    words = ["-json", "-4" if "." in vip else "-6", "address", "show", "dev", holder.link]

    def left_s():
        [found] = json.loads(run("ip", "-n", holder.name, *words))
        return next(one["valid_life_time"] for one in found["addr_info"] if one["local"] == vip.split("/")[0])

    # The kernel rounds up: it says so in the first second after each renewal.
    eventually(lambda: left_s() == TTL_S + 1, "the address lives longer than the lease")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_a_pooler_that_ends_gives_the_address_away(network, start, number):
    """At once: it does not wait until the lease would have ended."""
    # The lease is so long that only a pooler that gives it back can be the reason.
    holder, other = start(vip_ttl=600)
    eventually(network.selects, "clients are served")
    holder.stop(number)
    assert not holder.has(), "it is removed before the process ends"
    eventually(lambda: network.only(other), "the other one has the address")
    eventually(network.selects, "clients are served")
    assert "it is given away" in holder.pooler.log()


def test_a_pooler_that_drains_gives_the_address_away_first(network, start):
    """With shutdown_drain_seconds its clients are still served, at its own address."""
    holder, other = start(vip_ttl=600, shutdown_drain_seconds=600)
    holder.send(signal.SIGTERM)
    eventually(lambda: network.only(other), "the other one has the address")
    assert holder.vip()["state"] == "given away"
    holder.stop(signal.SIGTERM)


MOVED = "terminating connection because its address (vip) has left this pooler"


def clients_by(machine, address):
    """The number of clients of a pooler that came by an address."""
    answer = machine.ask("SHOW CLIENTS")
    rows = [dict(zip(answer.columns, row)) for row in answer.rows]
    return sum(row["local_addr"] == address for row in rows)


@pytest.fixture
def lock_is_free(pg):
    """A function that says whether no session has the lock of `Session.locks`."""
    return lambda: pg.sql("select count(*) from pg_locks where locktype = 'advisory' and objid = 7")[0][0] == 0


@pytest.mark.parametrize("vip", [f"{ADDRESS}/24", "fd78::9/64"])
def test_clients_of_an_address_that_is_given_away_are_told(network, start, lock_is_free, vip):
    """Those that came by it get an error, and their transactions end. Those that came by the machine's own address stay, and so do those of the unix
    socket: the console asks through it."""
    address = vip.split("/")[0]
    holder, other = start(vip=vip, vip_ttl=600, shutdown_drain_seconds=600)
    own = holder.vip()["holder"].removeprefix("http://").rsplit(":", 1)[0].strip("[]")
    with Session(network, address) as moved, Session(network, address) as open, Session(network, own) as stays:
        open.locks()
        assert not lock_is_free()
        assert clients_by(holder, address) == 2
        holder.send(signal.SIGTERM)
        eventually(lambda: network.only(other, address), "the other one has the address")
        eventually(lambda: clients_by(holder, address) == 0, "its clients are ended")
        eventually(lock_is_free, "the transaction is rolled back")
        for client in (moved, open):
            assert MOVED in client.is_told()
        assert stays.asks() == "7"
        eventually(lambda: network.selects(address), "clients are served by the other one")


def test_clients_of_an_address_that_was_lost_to_another_holder_end(network, start, lock_is_free):
    """The link is cut until the other pooler has the address. When it is mended, the first pooler drops the address and its clients with it, and
    their locks are free long before tcp_user_timeout."""
    holder, other = start()
    with Session(network) as lost:
        lost.locks()
        holder.cut()
        eventually(other.has, "the other one has the address")
        assert not lock_is_free(), "the old holder cannot know yet"
        holder.cut(False)
        eventually(lambda: network.only(other), "the first one has dropped it")
        eventually(lock_is_free, "the transaction is rolled back")
        eventually(lambda: clients_by(holder, ADDRESS) == 0, "its client is ended")
    # The first one takes it again: new clients are not ended.
    other.kill()
    eventually(lambda: network.only(holder), "the first one has the address again")
    eventually(network.selects, "clients are served")
    with Session(network) as session:
        lasts(2, lambda: session.asks() == "7", "it stays connected")


def test_clients_of_a_process_that_was_replaced_end_with_the_address(network, start, pg, lock_is_free):
    """After -R the old process still serves a client whose statement runs. When the new process gives the address away, both end the clients
    that came by it."""
    holder, other = start(vip_ttl=600, shutdown_drain_seconds=600)
    with Session(network) as busy, Session(network) as idle:
        busy.locks()
        busy.sleeps()
        sleeping = "select count(*) from pg_stat_activity where state = 'active' and query like 'select pg_sleep%'"
        eventually(lambda: pg.sql(sleeping) == [(1,)], "the statement runs")
        old = holder.pooler.process
        holder.start(arguments=("--quiet", "-R"))
        eventually(lambda: holder.vip()["state"] == "holds" and holder.vip()["lease"] == "own", "the new process has it")
        eventually(lambda: clients_by(holder, ADDRESS) == 1, "the idle client is the new process's")
        lasts(1, lambda: idle.asks() == "7", "it is served")
        assert old.poll() is None and not lock_is_free()
        holder.send(signal.SIGTERM)
        eventually(lambda: network.only(other), "the other one has the address")
        eventually(lock_is_free, "the old process has ended its client, too")
        assert old.wait(60) == 0
        assert pg.sql(sleeping) == [(0,)], "the statement was canceled"
        assert MOVED in idle.is_told()


def test_a_frozen_pooler_drops_the_address(network, start, lock_is_free):
    """The kernel removes it while the process is stopped; when it goes on, it reads that another pooler has the lease."""
    holder, other = start()
    with Session(network) as lost:
        lost.locks()
        holder.send(signal.SIGSTOP)
        eventually(lambda: network.only(other), "the address has left the frozen pooler")
        holder.send(signal.SIGCONT)
        eventually(lambda: holder.vip()["lease"] == "other" and holder.vip()["state"] == "standby", "it knows that it does not hold it")
        eventually(lock_is_free, "its client is ended, and the transaction is rolled back")
    assert network.only(other)
    assert holder.dropped() == 1 and other.dropped() == 0


def test_without_etcd_nothing_moves(network, start):
    """An outage of etcd that is longer than the lease cuts off no client."""
    holder, other = start()
    with Session(network) as session:
        network.etcd.freeze()
        eventually(lambda: holder.vip()["lease"] == "unknown" and other.vip()["lease"] == "unknown", "etcd is silent")
        assert "etcd cannot be asked" in holder.vip()["error"]
        lasts(2 * TTL_S, lambda: network.only(holder) and session.asks() == "7", "the address stays, and its client is served")
        network.etcd.freeze(False)
        eventually(lambda: holder.vip()["lease"] == "own" and other.vip()["lease"] == "other", "both ask etcd again")
        # etcd has lost its memory of time, and perhaps the lease, but not the keys.
        network.etcd.stop(signal.SIGKILL)
        eventually(lambda: holder.vip()["lease"] == "unknown", "etcd is gone")
        network.etcd.start()
        eventually(lambda: holder.vip()["lease"] == "own" and other.vip()["lease"] == "other", "both ask etcd again")
        assert network.only(holder) and session.asks() == "7"
    assert holder.dropped() == other.dropped() == 0
    assert holder.vip()["error"] is None


@pytest.mark.parametrize("fault", ("frozen", "killed"))
def test_force_takes_the_address_of_a_dead_pooler_while_etcd_is_down(network, start, fault):
    """It takes it from no pooler that has the lease, or that serves; and the lease follows when etcd answers again: an etcd that was
    killed first says that the dead pooler has the lease."""
    holder, other = start()
    refused = other.take_by_force()
    assert "has the lease" in refused.error["M"], refused
    assert not holder.take_by_force().errors, "it has the address already"
    eventually(network.selects, "clients are served")
    assert (holder.metric("pgweir_vip_holds"), other.metric("pgweir_vip_holds")) == (1, 0)
    if fault == "frozen":
        network.etcd.freeze()
    else:
        network.etcd.stop(signal.SIGKILL)
    eventually(lambda: other.vip()["lease"] == "unknown", "etcd is silent")
    refused = other.take_by_force()
    assert "answers that it has the address" in refused.error["M"], refused
    assert network.only(holder)
    before = network.mac()
    holder.kill()
    eventually(lambda: not holder.has(), "the kernel has removed the address of the dead process")
    lasts(TTL_S, lambda: not other.has(), "without etcd no pooler takes it")
    assert not other.take_by_force().errors
    assert network.only(other) and other.vip()["state"] == "holds" and other.vip()["lease"] == "unknown"
    assert (other.metric("pgweir_vip_holds"), other.metric("pgweir_vip_lease_known")) == (1, 0)
    eventually(lambda: network.mac() not in (None, before), "the announcement was heard")
    eventually(network.selects, "clients are served again")
    lasts(2 * TTL_S, lambda: network.only(other), "it stays")
    if fault == "frozen":
        network.etcd.freeze(False)
    else:
        network.etcd.start()
    eventually(lambda: other.vip()["lease"] == "own", "the lease follows")
    holder.start()
    eventually(lambda: holder.is_up() and holder.vip()["lease"] == "other", "the first one is back")
    assert network.only(other) and other.dropped() == 0


def test_an_address_taken_by_force_goes_to_the_pooler_whose_lease_lives(network, start):
    """The other pooler could reach neither etcd nor that pooler when it took the address."""
    holder, other = start()
    other.cut_from_etcd()
    other.cut_from(holder.own)
    eventually(lambda: other.vip()["lease"] == "unknown", "it asks etcd in vain")
    assert not other.take_by_force().errors
    other.cut_from(holder.own, False)
    other.cut_from_etcd(False)
    eventually(lambda: network.only(holder), "it has given the address up")
    lasts(TTL_S, lambda: network.only(holder), "it stays there")
    assert holder.dropped() == 0 and other.dropped() == 1


def test_a_holder_that_only_etcd_has_lost_is_asked(network, start):
    """Its lease ends, but it says that it serves: the other pooler leaves the address there, and clients stay connected."""
    holder, other = start()
    with Session(network) as session:
        holder.cut_from_etcd()
        eventually(lambda: other.vip()["lease"] == "free", "the lease has ended")
        lasts(TTL_S, lambda: network.only(holder) and session.asks() == "7", "the address stays")
        holder.cut_from_etcd(False)
        eventually(lambda: holder.vip()["lease"] == "own" and other.vip()["lease"] == "other", "it has the lease again")
        assert network.only(holder) and session.asks() == "7"
    assert holder.dropped() == other.dropped() == 0


def test_a_link_that_is_cut_and_mended(network, start):
    """While it is cut both have the address; afterwards the one with the lease."""
    holder, other = start()
    holder.cut()
    eventually(other.has, "the other one has the address")
    assert holder.has(), "a pooler that merely loses etcd keeps it"
    holder.cut(False)
    eventually(lambda: network.only(other), "the first one has dropped it")
    eventually(lambda: holder.vip()["lease"] == "other", "it asks etcd again")
    eventually(network.selects, "clients are served")
    lasts(TTL_S, lambda: network.only(other), "it stays there")
    assert holder.dropped() == 1 and other.dropped() == 0


def test_an_announcement_ends_a_holder_without_the_lease(network, start):
    """The holder cannot ask etcd after its link was mended, and receives the announcement of another machine."""
    holder, other = start()
    holder.cut()
    eventually(other.has, "the other one has the address")
    holder.cut_from_etcd()
    holder.cut(False)
    eventually(lambda: network.only(other), "the first one has dropped it")
    assert "another machine announces it" in holder.pooler.log()
    assert holder.vip()["lease"] == "unknown"


def test_online_restart_keeps_the_address(network, start):
    """With -R the address and its clients stay with the machine."""
    holder, other = start()
    with Session(network) as session:
        old = holder.pooler.process
        new = holder.start(arguments=("--quiet", "-R"))
        assert old.wait(60) == 0
        eventually(lambda: holder.vip()["state"] == "holds" and holder.vip()["lease"] == "own", "the new process has it")
        lasts(2 * TTL_S, lambda: network.only(holder) and session.asks() == "7", "the address stays")
        assert new.poll() is None
    assert holder.dropped() == other.dropped() == 0


def test_commands(network, start):
    """The commands set and remove the address instead of pgweir, which then needs no capability."""
    folder = scratch_folder("vip")
    try:
        for word in ("up", "down"):
            script = folder / word
            script.write_text(f'#!/bin/sh\necho "{word} $PGWEIR_VIP $1" >> "$0.$PGWEIR_VIP_INTERFACE"\n')
            script.chmod(0o755)
        folder.chmod(0o777)

        def said(machine, word):
            path = folder / f"{word}.{machine.link}"
            return path.read_text().splitlines() if path.exists() else []

        one, two = start(wait=False, capabilities=None, vip_up_command=f"{folder}/up now", vip_down_command=f"{folder}/down now")
        holder = eventually(lambda: next((m for m in (one, two) if said(m, "up")), None), "a command was run")
        other = two if holder is one else one
        assert said(holder, "up")[0] == f"up {ADDRESS}/24 now"
        eventually(lambda: holder.vip()["state"] == "holds", "it is shown")
        assert network.holders() == []
        holder.stop()
        assert said(holder, "down")[-1] == f"down {ADDRESS}/24 now"
        eventually(lambda: said(other, "up"), "the other one runs the command")
    finally:
        shutil.rmtree(folder)


def test_without_the_rights_nothing_is_taken(network, start):
    """The error names the missing right and how to grant it; the pooler leaves the lease to the others."""
    one, two = start(wait=False, capabilities=None)
    for machine in (one, two):
        machine.pooler.logged(
            "ERROR vip 10.78.0.9/24: this process lacks CAP_NET_ADMIN and CAP_NET_RAW; with systemd, install the drop-in pgweir-vip.conf"
        )
        eventually(lambda machine=machine: machine.vip()["state"] == "unable", "it is shown")
    one.stop()
    one.start(VIP_RIGHTS)
    eventually(lambda: network.only(one), "a pooler with the rights has the address")
    assert two.vip()["state"] == "unable"


def test_reload_moves_the_duty(network, start):
    """Another vip is taken, and the old one is removed."""
    holder, other = start()
    for machine in (holder, other):
        machine.pooler.write_ini(vip="10.78.0.8/24")
        machine.send(signal.SIGHUP)
    eventually(lambda: not network.holders() and len(network.holders("10.78.0.8")) == 1, "the new address is used")
    for machine in (holder, other):
        machine.pooler.write_ini(vip=None)
        machine.send(signal.SIGHUP)
    eventually(lambda: not network.holders("10.78.0.8"), "without the setting there is none")


def test_what_is_missing_is_said(network, start):
    """At load, and for an interface that does not exist at run time."""
    one, two = start(vip_interface="nosuch0", wait=False)
    eventually(lambda: one.pooler.log_path.exists() and "there is no network interface" in one.pooler.log(), "it is logged")
    assert one.vip()["state"] == "unable" and '"nosuch0"' in one.vip()["error"]
    for machine in (one, two):
        machine.pooler.write_ini(vip_interface=machine.link)
        machine.send(signal.SIGHUP)
    eventually(lambda: len(network.holders()) == 1, "with the right name it is taken")
    one.stop()
    one.pooler.write_ini(vip="10.78.0.9/33", http_listen=None, vip_up_command="/bin/true")
    process = one.start()
    one.pooler.expect_exit = True
    assert process.wait(60) == 1
    said = one.pooler.output()
    for fault in ("must be an address with its prefix length", "vip needs http_listen", "vip_up_command needs vip_down_command"):
        assert fault in said, said
