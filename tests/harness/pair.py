"""Machines of a pair of poolers: network namespaces with a pooler and keepalived, and the HAProxy ahead of a pair."""

import re
import shutil
import signal
import socket
import subprocess
import sys

from .machine import as_service, give, scratch_folder
from .network import ADDRESS, Host, run
from .pooler import binary

PORT, HTTP_PORT = 6432, 9127
"""The ports of every pooler: each namespace has its own."""

VIP_RIGHTS = "+net_admin,+net_raw"
"""The capabilities that `vip` needs."""


def tool(name):
    """The path of a program that Debian may have in /usr/sbin; `None` if it is not installed."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin")


KEEPALIVED, HAPROXY = tool("keepalived"), tool("haproxy")


class Machine(Host):
    """A host with a pooler, and perhaps a keepalived."""

    pooler = keepalived = folder = None

    def use(self, pooler):
        """Makes this pooler, which is not started yet, the machine's own."""
        self.pooler = pooler
        pooler.settings["listen_port"] = pooler.port = PORT
        pooler.write_ini()

    def start(self, capabilities=VIP_RIGHTS, arguments=("--quiet",)):
        """Starts the pooler under the service account."""
        command = as_service(*self.pooler.command(*arguments, str(self.pooler.ini)), signal_name="KILL")
        if capabilities:
            place = command.index("--")
            command[place:place] = ["--inh-caps", capabilities, "--ambient-caps", capabilities]
        self.pooler.expect_exit = False
        with open(self.pooler.stderr_path, "ab") as output:
            self.pooler.process = subprocess.Popen(
                self.inside(*command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.pooler.folder
            )
        return self.pooler.process

    def kill(self):
        """Kills the pooler."""
        self.pooler.expect_exit = True
        self.pooler.process.kill()
        self.pooler.process.wait()

    def send(self, number):
        """Sends the pooler a signal."""
        self.pooler.process.send_signal(number)

    def stop(self, number=signal.SIGINT):
        """Ends the pooler, and waits until it has ended."""
        self.pooler.expect_exit = True
        self.send(number)
        assert self.pooler.process.wait(60) == 0

    def lose_power(self):
        """Cuts the link first, so that nothing that ends can tell the others."""
        self.pooler.expect_exit = True
        self.cut()
        self.kill_all()
        self.pooler.process.wait()
        self.forget()
        if self.keepalived:
            self.keepalived.wait()
            # They lie in memory on a machine. keepalived does not start while one names a process that is not reaped yet.
            for name in ("pid", "vrrp.pid"):
                (self.folder / name).unlink(missing_ok=True)

    def ask(self, command):
        """The answer of the pooler's console."""
        with self.pooler.raw("pgbouncer", "admin", password="pw-of-admin", unix=True) as console:
            return console.query(command)

    def answers(self):
        """Whether the console answers."""
        assert self.pooler.process.poll() is None, self.pooler.output()
        try:
            return not self.ask("SHOW VERSION").errors
        except OSError:
            return False

    def vip(self):
        """The row of SHOW VIP; all is None before the first look at the address."""
        answer = self.ask("SHOW VIP")
        return dict(zip(answer.columns, answer.rows[0] if answer.rows else [None] * len(answer.columns)))

    def take_by_force(self):
        """The answer to VIP TAKE FORCE."""
        return self.ask("VIP TAKE FORCE")

    def metric(self, name):
        """The value of a metric of the virtual address, as the hub reads it."""
        program = f"import urllib.request; print(urllib.request.urlopen('http://{self.own}:{HTTP_PORT}/metrics').read().decode())"
        page = run("ip", "netns", "exec", self.network.hub, sys.executable, "-c", program)
        return int(re.search(rf"^{name}{{.*}} (\d+)$", page, re.MULTILINE)[1])

    def is_up(self):
        """Whether the console answers, and the pooler has asked etcd."""
        return self.answers() and self.vip()["lease"] in ("own", "other")

    def dropped(self):
        """The number of times that the pooler has dropped the address."""
        return self.pooler.log().count("does not have the address any more")

    def start_keepalived(self, text=None):
        """Starts keepalived with this file, or with that of the last time. Only the user of the check is changed: it does not exist here."""
        self.folder = self.folder or scratch_folder("pair")
        path, tested = self.folder / "keepalived.conf", self.folder / "tested.conf"
        if text:
            path.write_text(text.replace("script_user keepalived_script", "script_user nobody"))
            # keepalived 2.2 kills itself when it is to test a file whose checks do not run as root.
            tested.write_text(text.replace("script_user keepalived_script", "script_user root"))
            run(*self.inside(KEEPALIVED, "-t", "-f", str(tested)))
        pids = ["-p", str(self.folder / "pid"), "-r", str(self.folder / "vrrp.pid")]
        command = [KEEPALIVED, "--vrrp", "--dont-fork", "--log-console", "--log-detail", "-f", str(path), *pids]
        with open(self.folder / "keepalived.log", "wb") as output:
            self.keepalived = subprocess.Popen(self.inside(*command), stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def keepalived_log(self):
        """All that keepalived has logged since its start."""
        return (self.folder / "keepalived.log").read_text(errors="replace")

    def check_succeeds(self):
        """Whether keepalived has found the pooler ready the last time that this changed."""
        said = re.findall(r"VRRP_Script\(pgweir_ready\) (\w+)", self.keepalived_log())
        return bool(said) and said[-1] == "succeeded"

    def end(self):
        """Ends what runs on the machine. The pooler's folder stays."""
        for process in (self.keepalived, self.pooler and self.pooler.process):
            if process and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate() if process is self.keepalived else process.kill()
                process.wait(20)
        if self.pooler:
            self.pooler.expect_exit = True
        if self.folder:
            shutil.rmtree(self.folder)
        self.pooler = self.keepalived = self.folder = None


def keepalived_files(machines, *words):
    """What `pgweir pair keepalived` prints for two machines: all, and the file of each."""
    here, peer = machines
    words = [f"--address={ADDRESS}/24", f"--interface={here.link}", f"--peer-interface={peer.link}", f"--peer={peer.own}", *words]
    printed = run(*here.inside(str(binary()), "pair", "keepalived", *words))
    return printed, [run(*here.inside(str(binary()), "pair", "keepalived", *words, f"--only={which}")) for which in ("here", "peer")]


HAPROXY_FILE = """
global
    stats socket {folder}/stats level admin

defaults
    mode tcp
    timeout connect 2s
    timeout client 1h
    timeout server 1h

listen pgweir
    bind 127.0.0.1:{port}
    balance {balance}
    option redispatch 1
    option httpchk GET /readyz
    http-check expect status 200
    default-server {check} on-marked-down shutdown-sessions
{servers}
"""


class Balancer:
    """An HAProxy that sends clients to the poolers as docs/operate/high-availability.md says. `servers`: (address, port, port of HTTP) of each."""

    def __init__(self, port, servers, balance, check, host=None):
        self.folder = scratch_folder("haproxy")
        lines = [f"    server pooler{n} {own}:{their_port} check port {web}" for n, (own, their_port, web) in enumerate(servers, 1)]
        text = HAPROXY_FILE.format(folder=self.folder, port=port, balance=balance, check=check, servers="\n".join(lines))
        (self.folder / "haproxy.cfg").write_text(text)
        give(self.folder)
        command = as_service(HAPROXY, "-db", "-f", str(self.folder / "haproxy.cfg"), signal_name="KILL")
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                host.inside(*command) if host else command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )

    def are_up(self):
        """Whether HAProxy has found all poolers ready."""
        assert self.process.poll() is None, (self.folder / "log").read_text()
        with socket.socket(socket.AF_UNIX) as stats:
            try:
                stats.connect(f"{self.folder}/stats")
            except OSError:
                return False
            stats.sendall(b"show stat\n")
            said = b"".join(iter(lambda: stats.recv(65536), b"")).decode()
        states = [line.split(",")[17] for line in said.splitlines() if line.startswith("pgweir,pooler")]
        return bool(states) and all(state == "UP" for state in states)

    def end(self):
        """Ends HAProxy and removes its folder."""
        self.process.terminate()
        self.process.wait(10)
        shutil.rmtree(self.folder)
