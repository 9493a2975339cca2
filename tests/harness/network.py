"""Network namespaces on a bridge, whose links can be cut, and an etcd that they reach. Only root makes them."""

import os
import re
import signal
import subprocess
import threading
import time

from .machine import as_service, dies_with_us, eventually, scratch_folder
from .patroni import needed

ADDRESS = "10.78.0.9"
"""The address that moves between hosts."""

PREFIX, PREFIX6 = "10.78.0.", "fd78::"

# The bridge has 100. A host may be cut off from etcd and not from the others, so etcd has addresses of its own.
BRIDGE_NUMBER, ETCD_NUMBERS = 100, (101, 102, 103)


def run(*command):
    """Runs a command and returns its output; a failure is an assertion."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


class Host:
    """A network namespace with a link to the bridge."""

    def __init__(self, network, letter, number):
        self.network, self.number = network, number
        self.name, self.link, self.port_of_bridge = f"{network.name}{letter}", f"v{network.name}{letter}", f"h{network.name}{letter}"
        self.own, self.own6 = f"{PREFIX}{number}", f"{PREFIX6}{number}"
        # Processes of the test in the namespace, which are no part of the machine.
        self.monitors = set()

    def connect(self):
        """Makes the namespace and puts it on the bridge."""
        hub = self.network.hub
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", self.link, "netns", self.name, "type", "veth", "peer", "name", self.port_of_bridge, "netns", hub)
        run("ip", "-n", hub, "link", "set", self.port_of_bridge, "master", "bridge", "up")
        run("ip", "-n", self.name, "link", "set", "lo", "up")
        run("ip", "-n", self.name, "address", "add", f"{self.own}/24", "dev", self.link)
        run("ip", "-n", self.name, "-6", "address", "add", f"{self.own6}/64", "dev", self.link, "nodad")
        run("ip", "-n", self.name, "link", "set", self.link, "up")

    def inside(self, *command):
        """The command line that runs a program in the namespace."""
        return ["ip", "netns", "exec", self.name, *command]

    def cut(self, is_cut=True):
        """Cuts the host's link, or mends it."""
        run("ip", "-n", self.network.hub, "link", "set", self.port_of_bridge, "down" if is_cut else "up")

    def cut_from_etcd(self, is_cut=True):
        """Lets nothing get from the host to etcd, and everything to the other hosts."""
        for number in ETCD_NUMBERS:
            self.cut_from(f"{PREFIX}{number}", is_cut)

    def cut_from(self, address, is_cut=True):
        """Lets nothing get from the host to an address, or lets it again."""
        run("ip", "-n", self.name, "route", "add" if is_cut else "delete", "blackhole", f"{address}/32")

    def has(self, address=ADDRESS):
        """Whether the host's network interface has the address."""
        return f" {address}/" in run("ip", "-n", self.name, "-oneline", "address", "show", "dev", self.link)

    def forget(self, address=ADDRESS):
        """Removes the address, as the loss of power does."""
        subprocess.run(["ip", "-n", self.name, "address", "delete", f"{address}/24", "dev", self.link], capture_output=True)

    def kill_all(self):
        """Kills all processes in the namespace but monitors, and waits until none is left."""

        def pids():
            return {int(pid) for pid in run("ip", "netns", "pids", self.name).split()} - self.monitors

        for pid in pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        eventually(lambda: not pids(), "no process is left in the namespace")

    def discard(self):
        """Removes the namespace."""
        subprocess.run(["ip", "netns", "delete", self.name], capture_output=True)


class Watch:
    """The times at which a host got and lost the address, as the kernel reports them."""

    def __init__(self, host, address=ADDRESS):
        self.pattern = re.compile(rf"^(Deleted )?.* {re.escape(address)}/")
        self.host, self.address = host, address
        # When, and whether the host has the address from then on.
        self.changes = []
        command = host.inside(*dies_with_us("KILL"), "ip", "-oneline", "monitor", "address")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True)
        host.monitors.add(self.process.pid)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()
        # Nothing says when the monitor listens, so an address of no use is set until it has reported one.
        self.is_heard = False
        eventually(self._is_heard, "changes of addresses are reported", every_s=0.1)
        if host.has(address):
            self.changes.insert(0, (time.monotonic(), True))

    def _is_heard(self):
        for verb in ("add", "delete"):
            subprocess.run(["ip", "-n", self.host.name, "address", verb, "127.0.0.78/32", "dev", "lo"], capture_output=True)
        return self.is_heard

    def _read(self):
        for line in self.process.stdout:
            at_s = time.monotonic()
            self.is_heard = self.is_heard or "127.0.0.78/" in line
            seen = self.pattern.match(line)
            if seen and (not self.changes or self.changes[-1][1] is bool(seen[1])):
                self.changes.append((at_s, not seen[1]))

    def spans(self):
        """The spans of time in which the host had the address: (from, until), in seconds of `time.monotonic`."""
        found, began_s = [], None
        for at_s, has in list(self.changes):
            if has and began_s is None:
                began_s = at_s
            elif not has and began_s is not None:
                found.append((began_s, at_s))
                began_s = None
        return [*found, *([(began_s, time.monotonic())] if began_s is not None else [])]

    def end(self):
        """Ends the monitor."""
        self.host.monitors.discard(self.process.pid)
        self.process.kill()
        self.process.wait()
        self.thread.join(10)


class Network:
    """A bridge in a network namespace of its own, the hub, and hosts on it. The hub is a host of the network, too, with the number 100."""

    def __init__(self, letters="ab", kind=Host):
        self.name = f"pv{os.getpid()}"
        self.hub = f"{self.name}h"
        self.hosts = [kind(self, letter, number) for number, letter in enumerate(letters, 1)]

    def build(self):
        """Makes the namespaces. What was made is removed by `destroy`, also if this fails."""
        run("ip", "netns", "add", self.hub)
        run("ip", "-n", self.hub, "link", "set", "lo", "up")
        run("ip", "-n", self.hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.hub, "address", "add", f"{PREFIX}{BRIDGE_NUMBER}/24", "dev", "bridge")
        for number in ETCD_NUMBERS:
            run("ip", "-n", self.hub, "address", "add", f"{PREFIX}{number}/24", "dev", "bridge")
        run("ip", "-n", self.hub, "-6", "address", "add", f"{PREFIX6}{BRIDGE_NUMBER}/64", "dev", "bridge", "nodad")
        run("ip", "-n", self.hub, "link", "set", "bridge", "up")
        for host in self.hosts:
            host.connect()

    def destroy(self):
        """Removes the namespaces."""
        for host in self.hosts:
            host.discard()
        subprocess.run(["ip", "netns", "delete", self.hub], capture_output=True)

    def holders(self, address=ADDRESS):
        """The hosts that have the address."""
        return [host for host in self.hosts if host.has(address)]

    def only(self, host, address=ADDRESS):
        """Whether this host has the address, and no other one."""
        return self.holders(address) == [host]

    def mac(self, address=ADDRESS):
        """The hardware address that the hub sends to."""
        found = re.search(r"lladdr (\S+)", run("ip", "-n", self.hub, "neighbour", "show", address))
        return found and found[1]


class EtcdOnBridge:
    """An etcd of one or three members in the hub, each with an address of its own."""

    PORT, PEER_PORT = 2379, 2380

    def __init__(self, network, members=1):
        needed()
        self.hub = network.hub
        self.folder = scratch_folder("etcd")
        self.hosts = [f"{PREFIX}{number}" for number in ETCD_NUMBERS[:members]]
        self.processes = []
        try:
            self.start()
        except BaseException:
            self.discard()
            raise

    @property
    def url(self):
        """As `etcd_endpoints` has it."""
        return ",".join(f"http://{host}:{self.PORT}" for host in self.hosts)

    def start(self):
        """Starts all members, and waits until they serve."""
        members = ",".join(f"m{n}=http://{host}:{self.PEER_PORT}" for n, host in enumerate(self.hosts, 1))
        self.processes = [self._member(f"m{n}", host, members) for n, host in enumerate(self.hosts, 1)]
        eventually(lambda: self.ask("endpoint", "health").returncode == 0, "etcd serves")

    def _member(self, name, host, members):
        clients, peers = f"http://{host}:{self.PORT}", f"http://{host}:{self.PEER_PORT}"
        words = ["--name", name, "--data-dir", str(self.folder / name), "--listen-client-urls", clients, "--advertise-client-urls", clients]
        words += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", members]
        command = ["ip", "netns", "exec", self.hub, *as_service("etcd", *words, signal_name="KILL")]
        with open(self.folder / f"{name}.log", "ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/")

    def ask(self, *words):
        """Runs etcdctl."""
        command = ["ip", "netns", "exec", self.hub, "etcdctl", "--endpoints", self.url, *words]
        return subprocess.run(command, capture_output=True, text=True, env={"ETCDCTL_API": "3", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})

    def stop(self, how=signal.SIGTERM):
        """Ends all members."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(how)
        for process in self.processes:
            process.wait(30)

    def freeze(self, frozen=True):
        """The members answer nothing any more, or again."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def discard(self):
        """Ends all members and removes what they wrote."""
        self.freeze(False)
        self.stop(signal.SIGKILL)
        subprocess.run(["rm", "-rf", self.folder])
