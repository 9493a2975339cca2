"""The ways in which clients reach two poolers, and the faults that these have. docs/operate/high-availability.md describes each way."""

import signal
import time

from harness.machine import eventually
from harness.network import ADDRESS, EtcdOnBridge, Watch
from harness.pair import HTTP_PORT, PORT, VIP_RIGHTS, Balancer, keepalived_files
from harness.pooler import Pooler

CLIENT = "dbname=app user=alice password=pw-of-alice sslmode=disable gssencmode=disable connect_timeout=2"
GONE = "tcp_user_timeout=3000 keepalives_idle=1 keepalives_interval=1 keepalives_count=2"
"""How clients notice that a machine is gone."""

KEEPALIVES = {"tcp_keepidle": 5, "tcp_keepintvl": 5, "tcp_keepcnt": 3, "tcp_user_timeout": 15000}
"""How poolers notice that clients are gone: those that were on the other side of a cut have ended without a word. Their transactions have locks."""

DRAIN_S = 3


class Way:
    """Two poolers that know each other as peers. Subclasses say how clients reach them."""

    name = check_s = None
    # The time for which the address of a process that was killed or stopped may outlast the moment at which another machine takes it.
    lingers_s = 0.0
    rights = None
    settings = {}

    def __init__(self, machines, clients, pg, vip_ttl_s):
        self.machines, self.clients, self.pg, self.vip_ttl_s = machines, clients, pg, vip_ttl_s
        self.watches, self.turn = [], 0

    def begin(self):
        """Starts all that belongs to this way. What was started is ended by `end`, also if this fails."""
        peers = "\n".join(f"{machine.number} = host={machine.own} port={PORT}" for machine in self.machines)
        for machine in self.machines:
            # A fault that was broken off may have left it cut.
            machine.cut(False)
            # A unix socket of PostgreSQL is reached from every namespace.
            where = {"app": f"host={self.pg.folder} port={self.pg.port} dbname=app"}
            words = {"listen_addr": "*", "http_listen": f"*:{HTTP_PORT}", "default_pool_size": 20, "peer_id": machine.number}
            words |= {"shutdown_drain_seconds": DRAIN_S, **KEEPALIVES, **self.settings}
            machine.use(Pooler(where, start=False, ini_tail=f"[peers]\n{peers}\n", **words))
            machine.start(self.rights)
        self.start_others()
        self.watches = [Watch(machine) for machine in self.machines]

    def start_others(self):
        """Starts what the way needs beside the poolers."""

    def is_settled(self):
        """Whether both poolers serve, and either one may fail."""
        return all(machine.answers() for machine in self.machines)

    def victim(self):
        """The machine that the next fault is for: each in turn, or the one that has the address."""
        self.turn += 1
        return self.machines[self.turn % 2]

    def end(self):
        """Ends all that belongs to this way. Returns what was wrong with the poolers."""
        for watch in self.watches:
            watch.end()
        faults = []
        for machine in self.machines:
            pooler = machine.pooler
            if pooler:
                faults += pooler.finish()
            machine.end()
        return faults


class Hosts(Way):
    """Both poolers in the connection string."""

    name = "host=a,b"

    @property
    def conninfo(self):
        hosts = ",".join(machine.own for machine in self.machines)
        return f"host={hosts} port={PORT} load_balance_hosts=random {CLIENT} {GONE}"


class Balanced(Way):
    """HAProxy on the clients' machine."""

    name = "HAProxy"
    balancer = None
    conninfo = f"host=127.0.0.1 port={PORT} {CLIENT} {GONE}"

    def start_others(self):
        servers = [(machine.own, PORT, HTTP_PORT) for machine in self.machines]
        self.balancer = Balancer(PORT, servers, "leastconn", "inter 500ms fall 2 rise 2", host=self.clients)

    def is_settled(self):
        return super().is_settled() and self.balancer.are_up()

    def end(self):
        if self.balancer:
            self.balancer.end()
        return super().end()


class Moving(Way):
    """An address that one of the machines has."""

    conninfo = f"host={ADDRESS} port={PORT} {CLIENT} {GONE}"

    def holder(self):
        """The machine that has the address, and the other one does not; or None."""
        holders = [machine for machine in self.machines if machine.has()]
        return holders[0] if len(holders) == 1 else None

    def victim(self):
        return self.holder()


class Keepalived(Moving):
    """keepalived moves the address."""

    name = "keepalived"
    # keepalived looks at its pooler once in a second, and advertises more often.
    check_s = 1.0

    def start_others(self):
        _, files = keepalived_files(self.machines)
        for machine, text in zip(self.machines, files, strict=True):
            machine.start_keepalived(text)

    def is_settled(self):
        return super().is_settled() and all(machine.check_succeeds() for machine in self.machines) and self.holder()


class Vip(Moving):
    """pgweir and an etcd of three members move the address."""

    name = "vip"
    # The kernel rounds the second by which the address outlasts the lease.
    lingers_s = 1.25
    rights = VIP_RIGHTS
    etcd = None

    @property
    def check_s(self):
        """The time between two questions to etcd, and the time that one may take."""
        return self.vip_ttl_s / 10 + self.vip_ttl_s / 4

    def begin(self):
        self.etcd = EtcdOnBridge(self.machines[0].network, members=3)
        self.settings = {"vip": f"{ADDRESS}/24", "vip_ttl": self.vip_ttl_s, "etcd_endpoints": self.etcd.url}
        super().begin()

    def is_settled(self):
        if not super().is_settled():
            return False
        leases = sorted(str(machine.vip()["lease"]) for machine in self.machines)
        return leases == ["other", "own"] and self.holder() and self.holder().vip()["lease"] == "own"

    def end(self):
        faults = super().end()
        if self.etcd:
            self.etcd.discard()
        return faults


WAYS = {"hosts": Hosts, "haproxy": Balanced, "keepalived": Keepalived, "vip": Vip}


class Fault:
    """A fault of one pooler or its machine. `strike` begins it, and `mend` ends it when all clients are served again."""

    def __init__(self, way, victim, outage_s):
        self.way, self.victim, self.outage_s = way, victim, outage_s

    def strike(self):
        """Begins the fault. A fault that ends by itself is over when this returns."""

    def mend(self):
        """Puts things right again."""


class Kill(Fault):
    """The pooler is killed."""

    def strike(self):
        self.victim.kill()

    def mend(self):
        self.victim.start(self.way.rights)


class Power(Fault):
    """The machine loses its power."""

    def strike(self):
        self.victim.lose_power()

    def mend(self):
        self.victim.cut(False)
        self.victim.start(self.way.rights)
        if self.victim.keepalived:
            self.victim.start_keepalived()


class Freeze(Fault):
    """The pooler is stopped, and goes on later."""

    def strike(self):
        self.victim.send(signal.SIGSTOP)

    def mend(self):
        self.victim.send(signal.SIGCONT)


class Cut(Fault):
    """The machine's link is cut."""

    def strike(self):
        self.victim.cut()

    def mend(self):
        self.victim.cut(False)


class Restart(Fault):
    """A new process takes over from the old one."""

    def strike(self):
        old = self.victim.pooler.process
        self.victim.start(self.way.rights, arguments=("--quiet", "-R"))
        assert old.wait(60) == 0


class Drain(Fault):
    """The pooler drains and ends."""

    def strike(self):
        self.victim.stop(signal.SIGTERM)

    def mend(self):
        self.victim.start(self.way.rights)


class Outage(Fault):
    """All members of etcd are killed, and started again after a while."""

    def strike(self):
        began_s = time.monotonic()
        self.way.etcd.stop(signal.SIGKILL)
        leases = lambda: {machine.vip()["lease"] for machine in self.way.machines}
        eventually(lambda: leases() == {"unknown"}, "both poolers have noticed")
        eventually(lambda: time.monotonic() > began_s + self.outage_s, "the outage has lasted", timeout_s=self.outage_s + 60, every_s=0.1)
        assert leases() == {"unknown"}

    def mend(self):
        self.way.etcd.start()


FAULTS = {"kill": Kill, "machine": Power, "freeze": Freeze, "cut": Cut, "restart": Restart, "drain": Drain, "etcd": Outage}
