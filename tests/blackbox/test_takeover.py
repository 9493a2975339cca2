"""Online restart with -R: the new process takes listeners, clients and servers from the one that runs."""

import contextlib
import functools
import re
import signal
import ssl
import subprocess
import threading

import pytest

from harness.cluster import PASSWORDS
from harness.machine import as_service, dies_with_us, eventually
from harness.wire import FLUSH, SYNC, Closed, Raw, bind, describe, execute, parse, query

pytestmark = pytest.mark.needs("online restart over a unix socket")


def successor(pooler, *arguments):
    """Starts a second process with -R and waits until it has the pid file; returns the old process."""
    old = pooler.process
    pooler.arguments = ["--quiet", "-R", *arguments]
    pooler.start(wait=False)

    def has_pid_file():
        # The old process removes the file, and only then the new one makes its own.
        with contextlib.suppress(FileNotFoundError):
            return (pooler.folder / "pid").read_text() == f"{pooler.pid}\n"

    eventually(has_pid_file, "the new process has the pid file", timeout_s=20)
    return old


def over(old):
    """Waits until the old process has ended in order."""
    assert old.wait(timeout=30) == 0


def with_pid_file(start, **settings):
    """A pooler with a pid file, that another process can take over from."""
    pooler = start(start=False, server_tls_sslmode="disable", **settings)
    pooler.write_ini(pidfile=str(pooler.folder / "pid"))
    pooler.start()
    return pooler


@pytest.fixture
def running(pooled):
    """A function that starts a pooler with a pid file."""
    return functools.partial(with_pid_file, pooled)


def test_idle_clients_and_servers(running, pg):
    """Idle clients live on, on the same server connections; the old process ends; the pid file is the new one's."""
    pooler = running()
    sessions = [pooler.raw() for _ in range(5)]
    backend = sessions[0].value("select pg_backend_pid()")
    for _ in range(3):
        old = successor(pooler)
        over(old)
        assert (pooler.folder / "pid").read_text() == f"{pooler.pid}\n"
        assert [session.value("select pg_backend_pid()") for session in sessions] == [backend] * 5
        with pooler.raw(unix=True) as fresh:
            assert fresh.value("select 1") == "1"
    assert len(pooler.show("CLIENTS", database="app")) == 5
    pooler.logged(r"takeover is complete: 5 clients, 1 server connections")


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_open_transactions(running, pg, mode):
    """A transaction goes on in the new process, a failed one, too; what was prepared and set in the session is there."""
    pooler = running(pool_mode=mode)
    one, other, third = (pooler.raw() for _ in range(3))
    one.query("begin")
    one.query("create temp table mine on commit drop as select 42 as answer")
    other.query("begin")
    assert other.query("select 1/0").status == "E"
    third.query("set timezone to 'Asia/Tokyo'")
    over(successor(pooler))
    assert one.query("select answer from mine").rows == [["42"]]
    assert one.query("commit").status == "I"
    assert other.query("select 1").error["C"] == "25P02"
    assert other.query("rollback").status == "I"
    assert third.value("show timezone") == "Asia/Tokyo"


def test_paused_and_disabled_databases(running):
    """PAUSE and DISABLE of single databases hold in the new process, from its first client on."""
    pooler = running()
    with pooler.raw("app2") as waits:
        waits.value("select 1")
        pooler.admin("PAUSE app2")
        pooler.admin("DISABLE app3")
        over(successor(pooler))
        switches = {row["name"]: (row["paused"], row["disabled"]) for row in pooler.show("DATABASES")}
        assert [switches[name] for name in ("app", "app2", "app3")] == [("0", "0"), ("1", "0"), ("0", "1")]
        waits.send(query("select 2"))
        waits.quiet(0.5)
        pooler.admin("RESUME app2")
        assert waits.until().rows == [["2"]]


def test_prepared_statements(running):
    """Names of prepared statements stay true, in every later process."""
    pooler = running()
    sessions = [pooler.raw() for _ in range(3)]
    for number, session in enumerate(sessions):
        session.send(parse("p", f"select {number}, $1::int", (23,)), SYNC)
        assert not session.until().errors
    for turn in range(3):
        over(successor(pooler))
        for number, session in enumerate(sessions):
            session.send(bind("", "p", (turn,)), describe("P", ""), execute(), SYNC)
            assert session.until().rows == [[str(number), str(turn)]]
            session.send(parse(f"q{turn}", f"select 'turn {turn}'"), bind("", f"q{turn}"), execute(), SYNC)
            assert session.until().rows == [[f"turn {turn}"]]


def test_statements_under_way(running, pg):
    """What runs is finished in the old process, and the client goes on in the new one. Those in the queue wait there."""
    pooler = running(default_pool_size=1)
    busy, waiting = pooler.raw(), pooler.raw()
    busy.send(query("select pg_sleep(1.5), 'done'"))
    eventually(lambda: pg.running("pg_sleep(1.5)"), "the statement runs")
    waiting.send(query("select 'waited'"))
    eventually(lambda: pooler.pool()["cl_waiting"] == 1, "the other waits")
    old = successor(pooler)
    assert waiting.until().rows == [["waited"]]
    assert busy.until().rows == [["", "done"]]
    over(old)
    assert busy.value("select 1") == waiting.value("select 1") == "1"


@pytest.mark.parametrize("way", ["restarted again", "killed"])
def test_a_statement_outlasts_two_processes(running, pg, way):
    """A statement runs in the first process while the second is replaced, or lost: its client gets the answer, and goes on."""
    pooler = running(default_pool_size=2)
    busy, inside = pooler.raw(), pooler.raw()
    with pg.connect() as holder:
        holder.execute("select pg_advisory_lock(4078)")
        inside.query("begin")
        inside.send(query("select pg_advisory_xact_lock_shared(4078), 'inside'"))
        busy.send(query("select pg_advisory_xact_lock_shared(4078), 'done'"))
        eventually(lambda: len(pg.running("pg_advisory_xact_lock_shared")) == 2, "the statements run")
        old = [successor(pooler)]
        if way == "killed":
            pooler.expect_exit = True
            pooler.process.kill()
        else:
            old.append(successor(pooler))
            busy.cancel()
            assert busy.until().error["C"] == "57014"
            busy.send(query("select 'done'"))
    assert busy.until().rows[0][-1] == "done"
    assert inside.until().rows == [["", "inside"]]
    assert busy.value("select 1") == inside.value("select 1") == "1"
    assert inside.query("commit").commands == ["COMMIT"]
    busy.terminate()
    inside.terminate()
    for process in old:
        over(process)


LOST_SUCCESSOR = """
import os, signal, socket, struct, sys
path, expected, to_take = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
old = socket.socket(socket.AF_UNIX)
old.connect(path)

def exactly(length):
    got = b""
    while len(got) < length:
        part = old.recv(length - len(got))
        if not part:
            sys.exit("the old process has closed the connection")
        got += part
    return got

def frame():
    tag, sockets, _, _ = socket.recv_fds(old, 1, 64)
    return tag, exactly(struct.unpack("!i", exactly(4))[0] - 4), sockets

def say(tag, body=b""):
    old.sendall(tag + struct.pack("!i", len(body) + 4) + body)

startup = struct.pack("!i", 196608) + b"user\\0pgbouncer\\0database\\0pgbouncer\\0\\0"
old.sendall(struct.pack("!i", len(startup) + 4) + startup)
while frame()[0] != b"Z":
    pass
say(b"Q", b"TAKE_OVER;\\0")
assert frame()[0] == b"d"
say(b"r", b"\\1")
assert frame()[0] == b"y"
sockets = 0
while sockets < expected:
    tag, body, more = frame()
    assert tag == b"c", tag
    sockets += len(more)
    if to_take > 0 or not more:
        say(b"t")
        to_take -= bool(more)
print("it has everything", flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""
"""Takes over as the next process does, acknowledges the first things with sockets, and is lost with all of them."""


@pytest.mark.parametrize("taken", [0, 1])
def test_a_successor_lost_with_everything(running, taken):
    """Clients and servers that a lost process was given and had not acknowledged go on in the old one; what it had acknowledged is its."""
    pooler = running(default_pool_size=2)
    sessions = [pooler.raw() for _ in range(4)]
    sessions[3].query("begin")
    backend = sessions[3].value("select pg_backend_pid()")
    assert [session.value("select 1") for session in sessions[:3]] == ["1"] * 3
    # Three clients; a client and its server; a server.
    command = ["/usr/bin/python3", "-c", LOST_SUCCESSOR, pooler.unix_address, "6", str(taken)]
    lost = subprocess.Popen(as_service(*command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
    assert lost.stdout.readline() == "it has everything\n"
    lost.stdin.close()
    assert lost.wait() == -signal.SIGKILL
    gone = [session for session in sessions[:3] if not answers(session)]
    assert len(gone) == taken
    assert sessions[3].value("select pg_backend_pid()") == backend
    assert sessions[3].query("commit").commands == ["COMMIT"]
    for session in sessions:
        if session not in gone:
            session.terminate()
    pooler.logged("the new process is gone before everything was handed over")
    assert pooler.wait_exit() == 0


def answers(session):
    """Whether the client is served; if not, its connection has been closed."""
    try:
        return session.value("select 1") == "1"
    except (Closed, ConnectionError):
        return False


def test_cancel_keys(running, pg):
    """A key that the old process gave cancels in the new one."""
    pooler = running()
    session = pooler.raw()
    session.query("begin")
    over(successor(pooler))
    session.send(query("select pg_sleep(30)"))
    eventually(lambda: pg.running("pg_sleep(30)"), "the statement runs")
    session.cancel()
    assert session.until().error["C"] == "57014"


def test_cancel_of_clients_that_stay(running, pg, certificates):
    """Clients that cannot travel are served by the old process; their cancel requests reach the new one, and find them nevertheless."""
    pooler = running(client_tls_sslmode="allow", client_tls_key_file=certificates.key("pooler"), client_tls_cert_file=certificates.crt("pooler"), default_pool_size=1)
    secured = Raw(pooler.address)
    context = ssl.create_default_context(cafile=certificates.crt("ca"))
    secured.start_tls(context)
    secured.login("alice", "app", PASSWORDS["alice"])
    plain = pooler.raw(database="app2")
    plain.send(query("select pg_sleep(200)"))
    eventually(lambda: pg.running("pg_sleep(200)"), "the other statement runs")
    old = successor(pooler)
    for number in (1, 2):
        secured.send(query(f"select {number}, pg_sleep(100)"))
        eventually(lambda: pg.running(f"select {number}, pg_sleep(100)"), "the statement runs")
        secured.cancel()
        assert secured.until().error["C"] == "57014"
    plain.cancel()
    assert plain.until().error["C"] == "57014"
    assert plain.value("select 1") == "1"
    assert old.poll() is None
    secured.terminate()
    over(old)


def test_half_a_message(running):
    """A client that has sent half a message goes over with it."""
    pooler = running()
    session = pooler.raw()
    message = query("select 'whole'")
    session.send(message[:9])
    eventually(lambda: pooler.show("SOCKETS", type="C", database="app")[0]["pkt_avail"] == "9", "half of it is there")
    over(successor(pooler))
    session.send(message[9:])
    assert session.until().rows == [["whole"]]


@pytest.mark.parametrize("begin", ["", "begin"])
@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_the_rest_of_a_group(running, begin, fails, mode):
    """A client that has flushed a group and not ended it stays until its Sync; behind an error PostgreSQL ignores the rest of the group."""
    pooler = running(pool_mode=mode)
    session = pooler.raw()
    if begin:
        session.query(begin)
    session.send(parse("", "select 1/0" if fails else "select 1"), bind("", ""), execute(), FLUSH)
    if fails:
        assert session.until("E").errors[0]["C"] == "22012"
    else:
        assert session.until("C").rows == [["1"]]
    old = successor(pooler)
    session.send(parse("", "select 3"), bind("", ""), execute(), SYNC)
    answer = session.until()
    assert answer.rows == ([] if fails else [["3"]]) and not answer.errors
    if begin:
        session.query("rollback")
    assert session.value("select 4") == "4"
    over(old)
    assert session.value("select 5") == "5"


def test_no_process_to_take_over_from(running):
    """With -R and no process to take over from, it starts as usual."""
    pooler = running()
    pooler.signal(signal.SIGQUIT)
    assert pooler.wait_exit() == 0
    pooler.expect_exit = False
    pooler.arguments = ["--quiet", "-R"]
    pooler.start()
    assert pooler.alive()
    assert "LOG old process not found, try to continue normally" in pooler.log()


def test_a_successor_that_cannot_start(running):
    """A new process with a fault in its file changes nothing."""
    pooler = running()
    session = pooler.raw()
    broken = pooler.folder / "broken.ini"
    broken.write_text(pooler.ini.read_text() + "\nno_such_setting = 1\n")
    done = subprocess.run(as_service(*pooler.command("-R", str(broken))), capture_output=True, cwd=pooler.folder)
    assert done.returncode == 1
    nowhere = pooler.folder / "nowhere.ini"
    nowhere.write_text(pooler.ini.read_text().replace("listen_addr = 127.0.0.1", "listen_addr = 192.0.2.1"))
    done = subprocess.run(as_service(*pooler.command("-R", str(nowhere))), capture_output=True, cwd=pooler.folder)
    assert done.returncode == 1, done
    assert session.value("select 1") == "1"
    assert pooler.alive() and (pooler.folder / "pid").read_text() == f"{pooler.pid}\n"
    over(successor(pooler))
    assert session.value("select 1") == "1"


def test_strangers_cannot_take_over(running):
    """The command is for processes of our own user on the unix socket: an administrator over TCP is refused."""
    pooler = running()
    with pooler.console() as console:
        assert console.query("TAKE_OVER").error["C"] == "55000"
    assert pooler.alive()


@pytest.mark.parametrize("how", ["simple", "extended", "prepared"])
def test_pgbench_runs_through(running, pg, how):
    """pgbench runs across several restarts and sees no error. A thread for each client: one that prepares blocks its whole thread,
    and must not keep other clients from ending the transactions whose servers it waits for."""
    pooler = running(default_pool_size=4)
    bench = subprocess.Popen(
        [*dies_with_us("KILL"), "pgbench", "-n", "-T", "4", "-c", "10", "-j", "10", "-M", how, "-f", "/dev/stdin", pooler.dsn()],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    bench.stdin.write("\\set id random(1, 1000)\nbegin;\nselect v from kv where id = :id;\nupdate kv set v = v where id = :id;\nend;\nselect :id;\n")
    bench.stdin.close()
    restarts = 0
    while bench.poll() is None and restarts < 5:
        eventually(lambda: bench.poll() is not None or len(pooler.show("CLIENTS", database="app")) == 10, "all clients are there")
        over(successor(pooler))
        restarts += 1
    output = bench.stdout.read()
    assert bench.wait() == 0, output
    assert restarts >= 1
    assert "number of failed transactions: 0" in output and not re.search("error|aborted", output), output


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_clients_that_stay_see_no_error(running, pg, certificates, mode):
    """TLS sessions, and sessions that keep their server, cannot travel: under load they go on in the old process across two restarts,
    beside other sessions that travel. No client sees an error, and both old processes end when their last client has left."""
    pooler = running(client_tls_sslmode="allow", client_tls_key_file=certificates.key("pooler"),
                     client_tls_cert_file=certificates.crt("pooler"), default_pool_size=20, pool_mode=mode)  # fmt: skip
    stop, faults, rounds = threading.Event(), [], [0] * 9

    def work(number):
        kind = ("secured", "pinned", "plain")[number % 3]
        try:
            with pooler.connect(sslmode="require" if kind == "secured" else "disable", prepare_threshold=1) as client:
                assert client.pgconn.ssl_in_use == (kind == "secured")
                if kind == "pinned":
                    client.execute("create temp table mine (n int)")
                    client.execute("insert into mine values (%s)", (number,))
                while not stop.is_set():
                    with client.transaction():
                        client.execute("update kv set v = v where id = %s", (number,))
                        assert client.execute("select %s::int", (number,)).fetchone() == (number,)
                    if kind == "pinned":
                        assert client.execute("select n from mine").fetchall() == [(number,)]
                    rounds[number] += 1
        except Exception as fault:
            faults.append(f"{kind}: {fault!r}")

    def goes_on():
        before = list(rounds)
        eventually(lambda: faults or all(now > then + 5 for now, then in zip(rounds, before)), "every client goes on")

    workers = [threading.Thread(target=work, args=(number,)) for number in range(9)]
    for worker in workers:
        worker.start()
    goes_on()
    ended = []
    for _ in range(2):
        ended.append(successor(pooler))
        goes_on()
    staying = [old.poll() for old in ended]
    stop.set()
    for worker in workers:
        worker.join()
    assert not faults, faults
    assert staying[0] is None, "the first process serves the clients that cannot travel"
    for old in ended:
        over(old)
