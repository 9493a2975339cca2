"""The process: command line, start and its failures, signals, pid file, logs, file descriptors."""

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from harness.machine import ACCOUNT_NAME, accepts, as_service, eventually, free_port, give
from harness.pooler import binary, kind
from harness.wire import SSL_REQUEST, Closed, Raw, query, startup


def run(pooler, *arguments, timeout_s=10, **options):
    """Runs the binary to its end; returns the finished process."""
    return subprocess.run(as_service(*pooler.command(*arguments)), capture_output=True, text=True, timeout=timeout_s, cwd=pooler.folder, **options)


@pytest.fixture
def stopped(pooled):
    """A pooler that is written but not started."""
    return pooled(start=False)


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version(stopped, option):
    """The version on stdout, exit code 0."""
    done = run(stopped, option)
    assert done.returncode == 0 and re.search(r"\d+\.\d+", done.stdout)


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help(stopped, option):
    """Usage on stdout, exit code 0, every option named."""
    done = run(stopped, option)
    assert done.returncode == 0
    for word in ("--daemon", "--quiet", "--user", "--verbose", "--version", "--help"):
        assert word in done.stdout


@pytest.mark.parametrize("arguments", [[], ["--no-such-option"], ["one.ini", "two.ini"], ["-u"]])
def test_bad_usage(stopped, arguments):
    """Wrong arguments: a word on stderr, exit code 1."""
    done = run(stopped, *arguments)
    assert done.returncode == 1 and done.stderr + done.stdout


def test_no_such_ini(stopped):
    """A file that is not there is named; exit code 1."""
    done = run(stopped, "/nonexistent/pooler.ini")
    assert done.returncode == 1 and "/nonexistent/pooler.ini" in done.stderr


@pytest.mark.parametrize(
    "line, words",
    [
        ("no_such_setting = 1", "no_such_setting"),
        ("pool_mode = sometimes", "pool_mode"),
        ("default_pool_size = many", "default_pool_size"),
        ("auth_type = guess", "auth_type"),
        ("query_timeout = -1", "query_timeout"),
        ("client_tls_sslmode = perhaps", "client_tls_sslmode"),
        ("a line that is none", ""),
        ("[no such section]\nx = 1", ""),
        ("[databases]\nbroken = host=\n", ""),
        ("[databases]\nbroken = hosst=localhost\n", ""),
        ("[databases]\nbroken = host='unfinished\n", ""),
        ("[databases]\npgbouncer = host=127.0.0.1\n", "pgbouncer"),
        ("[users]\nalice = no_such_key=1\n", ""),
        ("%include /nonexistent/more.ini", "/nonexistent/more.ini"),
    ],
)
def test_an_ini_with_a_fault(stopped, line, words):
    """The start fails with exit code 1 and says where: never a guess, never silence."""
    with open(stopped.ini, "a") as ini:
        ini.write(line + "\n")
    number = len(stopped.ini.read_text().splitlines())
    done = run(stopped, str(stopped.ini))
    output = done.stderr + done.stdout + stopped.log()
    assert done.returncode == 1
    assert words in output
    if kind() == "pgweir" and "include" not in line:
        assert re.search(rf"pooler\.ini:({number}|{number - 1})\b", output), "the file and the line must be named:\n" + output


def test_an_ini_without_its_section(stopped):
    """The section [pgbouncer] must be there."""
    stopped.ini.write_text("[databases]\napp = host=127.0.0.1\n")
    assert run(stopped, str(stopped.ini)).returncode == 1


def test_include(pooled, pg):
    """%include brings in another file; the section goes on behind it."""
    pooler = pooled(start=False)
    more = pooler.folder / "more.ini"
    more.write_text(f"[databases]\nincluded = {pg.at('app2')}\n")
    give(more)
    pooler.ini.write_text(f"%include {more}\n" + pooler.ini.read_text())
    pooler.start()
    with pooler.raw("included") as session:
        assert session.value("select current_database()") == "app2"


def test_comments_and_blanks(pooled):
    """Comments with ; and #, blanks around names and values, CRLF-free files of any shape."""
    pooler = pooled(start=False)
    pooler.ini.write_text("; first\n# second\n\n" + pooler.ini.read_text().replace(" = ", "   =\t", 3) + "\n   ; last\n")
    pooler.start()
    assert pooler.alive()


def test_root_is_refused(stopped):
    """Run by root without `user`: exit code 1 and the reason."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    done = subprocess.run(stopped.command(str(stopped.ini)), capture_output=True, text=True, timeout=10)
    assert done.returncode == 1 and "root" in done.stderr + stopped.log()


@pytest.mark.parametrize("way", ["-u", "setting"])
def test_root_gives_up_its_rights(pooled, way):
    """Started by root with -u or `user`: the process runs under that account, with that account's groups only."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    pooler = pooled(start=False, **({"user": ACCOUNT_NAME} if way == "setting" else {}))
    arguments = ["-q", *(["-u", ACCOUNT_NAME] if way == "-u" else []), str(pooler.ini)]
    pooler.process = subprocess.Popen(pooler.command(*arguments), cwd=pooler.folder, stdin=subprocess.DEVNULL)
    eventually(pooler._listening, "it listens")
    status = open(f"/proc/{pooler.pid}/status").read()
    uids = re.search(r"Uid:\s+(.*)", status)[1].split()
    groups = re.search(r"Groups:(.*)", status)[1].split()
    assert "0" not in uids and "0" not in groups


def test_a_port_in_use(pooled):
    """Another process has the port: exit code 1 and the address in the message."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = free_port()
        taken.bind(("127.0.0.1", port))
        taken.listen()
        pooler = pooled(start=False, listen_port=port, unix_socket_dir="")
        pooler.start(wait=False)
        assert pooler.wait_exit() == 1
        assert str(port) in pooler.output()


def test_a_unix_socket_in_use(pooled):
    """A running pooler's unix socket is not taken away from it."""
    first = pooled()
    second = pooled(start=False, unix_socket_dir=str(first.folder), listen_addr="", listen_port=first.port)
    second.start(wait=False)
    assert second.wait_exit() == 1
    assert "in use" in second.output()
    with first.raw(unix=True) as session:
        assert session.value("select 1") == "1"


def test_a_stale_unix_socket(pooled):
    """A socket file left by a killed process is replaced."""
    pooler = pooled()
    eventually(lambda: os.path.exists(pooler.unix_address), "it listens there, too")
    pooler.process.kill()
    pooler.process.wait()
    assert os.path.exists(pooler.unix_address)
    pooler.start()
    with pooler.raw(unix=True) as session:
        assert session.value("select 1") == "1"


def test_unix_socket_mode(pooled):
    """unix_socket_mode is the socket file's mode, and the file is gone after the end."""
    pooler = pooled(unix_socket_mode="0700")
    assert os.stat(pooler.unix_address).st_mode & 0o777 == 0o700
    pooler.signal(signal.SIGTERM)
    if kind() == "pgweir":
        pooler.signal(signal.SIGTERM)
    pooler.wait_exit()
    assert not os.path.exists(pooler.unix_address)


def test_no_unix_socket_and_no_tcp(pooled):
    """Only TCP, or only the unix socket."""
    tcp = pooled(unix_socket_dir="")
    with tcp.raw() as session:
        assert session.value("select 1") == "1"
    unix = pooled(listen_addr="")
    with unix.raw(unix=True) as session:
        assert session.value("select 1") == "1"
    with pytest.raises(ConnectionRefusedError):
        Raw(unix.address)


def test_daemon(pooled):
    """-d: the caller gets control back, the pid file names the process, SIGTERM ends it and removes the file."""
    pooler = pooled(start=False)
    pidfile = pooler.folder / "pooler.pid"
    pooler.write_ini(pidfile=str(pidfile))
    done = run(pooler, "-d", str(pooler.ini))
    assert (done.returncode, done.stdout + done.stderr) == (0, ""), "the terminal hears of what goes wrong only"
    pid = int(eventually(lambda: pidfile.exists() and pidfile.read_text().strip(), "the pid file is written"))
    try:
        with pooler.raw() as session:
            assert session.value("select 1") == "1"
        assert os.getsid(pid) == pid or os.getpgid(pid) != os.getpgid(0)
        assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    finally:
        os.kill(pid, signal.SIGTERM)
    eventually(lambda: not pidfile.exists(), "the pid file is removed")


def test_daemon_without_pidfile(stopped):
    """-d needs a pid file."""
    done = run(stopped, "-d", str(stopped.ini))
    assert done.returncode == 1 and "pidfile" in done.stderr and "pidfile" in stopped.log()


def test_a_failed_start_is_in_the_log_file(stopped):
    """What is wrong at a start is in the log file, also a fault of the file that names it; with -q it is nowhere else."""
    done = run(stopped, "-q", "-u", "nobody_of_this_name", str(stopped.ini))
    assert done.returncode == 1 and "nobody_of_this_name" in stopped.log()
    stopped.write_ini(listen_backlog="many")
    loud, quiet = run(stopped, str(stopped.ini)), run(stopped, "-q", str(stopped.ini))
    assert stopped.log().count("listen_backlog") == 2 and stopped.log().count("FATAL cannot load config file") == 2
    assert "listen_backlog" in loud.stderr and done.stderr + quiet.stderr == ""


def test_a_daemon_says_on_the_terminal_why_it_cannot_start(stopped):
    """-d: a port that is in use is named on stderr, and in the log file."""
    with socket.create_server(("127.0.0.1", stopped.port)):
        stopped.write_ini(pidfile=str(stopped.folder / "pooler.pid"), unix_socket_dir="")
        done = run(stopped, "-d", str(stopped.ini))
    assert done.returncode == 1 and str(stopped.port) in done.stderr and done.stderr in stopped.log()


def test_a_pidfile_of_a_living_process(pooled):
    """A pid file that names a living process: refused; a stale one is replaced."""
    pooler = pooled(start=False)
    pidfile = pooler.folder / "pooler.pid"
    pooler.write_ini(pidfile=str(pidfile))
    sleeper = subprocess.Popen(as_service("sleep", "60"))
    try:
        pidfile.write_text(f"{sleeper.pid}\n")
        give(pidfile)
        pooler.start(wait=False)
        assert pooler.wait_exit() == 1
        assert "pidfile" in pooler.output()
    finally:
        sleeper.kill()
        sleeper.wait()
    pooler.start()
    pooler.expect_exit = False
    assert pidfile.read_text() == f"{pooler.pid}\n"


def test_hup_reloads(pooled, pg):
    """SIGHUP reads the ini again."""
    pooler = pooled()
    pooler.databases["fresh"] = pg.at("app2")
    pooler.write_ini()
    pooler.signal(signal.SIGHUP)
    pooler.logged("got SIGHUP")

    def there():
        try:
            with pooler.raw("fresh") as session:
                return session.value("select current_database()") == "app2"
        except Closed:
            return False

    eventually(there, "the new database works")


def test_usr1_pauses_and_usr2_resumes(pooled, pg):
    """SIGUSR1 is PAUSE, SIGUSR2 is RESUME."""
    pooler = pooled()
    with pooler.raw() as session:
        session.value("select 1")
        pooler.signal(signal.SIGUSR1)
        eventually(lambda: not pg.backends("app"), "all servers are closed")
        session.send(query("select 'after'"))
        assert session.quiet(0.3)
        pooler.signal(signal.SIGUSR2)
        assert session.until("Z").rows == [["after"]]


def test_int_waits_for_transactions(pooled):
    """SIGINT: open transactions may finish, then it ends."""
    pooler = pooled()
    with pooler.raw() as inside:
        inside.query("begin")
        pooler.signal(signal.SIGINT)
        pooler.logged("got SIGINT")
        time.sleep(0.4)
        assert inside.query("select 1").status == "T"
        inside.query("commit")
        assert pooler.wait_exit() == 0


@pytest.mark.needs("what is asked before SIGINT is answered")
@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
def test_int_answers_what_a_fresh_pool_was_asked_before(pooled, mode):
    """A statement that reached the pooler before the shutdown is answered, though the pool's first server was just opened."""
    for _ in range(10):
        pooler = pooled(pool_mode=mode)
        with pooler.console() as console, pooler.raw() as session:
            session.send(query("select 'answered'"))
            console.send(query("SHUTDOWN WAIT_FOR_SERVERS"))
            assert session.until("Z").rows == [["answered"]]
        assert pooler.wait_exit() == 0


@pytest.mark.needs("shutdown waits for clients")
@pytest.mark.parametrize("way", ["SIGINT", "SHUTDOWN WAIT_FOR_SERVERS", "SIGTERM", "SHUTDOWN WAIT_FOR_CLIENTS"])
def test_only_the_console_is_open_during_a_shutdown(pooled, way):
    """Over TCP nothing is accepted any more; the unix socket stays open for the console, other clients are refused there. Where clients are
    waited for, those that had connected before are let in."""
    pooler = pooled()
    with pooler.raw() as inside, pooler.raw(login=False) as early:
        inside.query("begin")
        # Accepted, whatever `tcp_defer_accept` is.
        early.send(SSL_REQUEST)
        assert early.socket.recv(1) == b"N"
        if way.startswith("SIG"):
            pooler.signal(getattr(signal, way))
        else:
            pooler.admin(way)
        eventually(lambda: not accepts(pooler.port), "the TCP listener is closed")
        waits_for_clients = way in ("SIGTERM", "SHUTDOWN WAIT_FOR_CLIENTS")
        if waits_for_clients:
            early.login("alice", "app")
            early.terminate()
        for late in (pooler.raw(login=False, unix=True), *(() if waits_for_clients else (early,))):
            with pytest.raises(Closed) as refused:
                late.login("alice", "app")
            assert refused.value.error["M"] == "pooler is shutting down"
        with pooler.raw("pgbouncer", "admin", password="pw-of-admin", unix=True) as console:
            assert console.query("SHOW POOLS").rows
            assert inside.query("select 1").status == "T"
            inside.query("commit")
            if waits_for_clients:
                inside.terminate()
            assert pooler.wait_exit() == 0


def listeners(port):
    """How many sockets listen on a TCP port of this machine."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    sockets = (line.split() for line in lines)
    return sum(words[1].endswith(f":{port:04X}") and words[3] == "0A" for words in sockets)


@pytest.mark.needs("shutdown waits for clients")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_of_two_with_one_port_shuts_down(pooled, number):
    """Under so_reuseport the process that shuts down takes no connection from then on: all go to the other."""
    leaving = pooled(so_reuseport=1)
    staying = pooled(start=False, so_reuseport=1)
    staying.port = leaving.port
    staying.write_ini(listen_port=leaving.port)
    staying.start()
    with leaving.raw(unix=True) as inside:
        inside.query("begin")
        leaving.signal(number)
        eventually(lambda: listeners(leaving.port) == 1, "its listener is closed")
        for _ in range(40):
            with staying.raw() as client:
                assert client.value("select 1") == "1"
        inside.query("commit")
        if number == signal.SIGTERM:
            inside.terminate()
        assert leaving.wait_exit() == 0


@pytest.mark.needs("shutdown waits for clients")
def test_term_waits_for_clients(pooled):
    """SIGTERM: no new clients, those there go on, the last one to leave ends it with 0."""
    pooler = pooled()
    with pooler.raw() as session:
        session.value("select 1")
        pooler.signal(signal.SIGTERM)
        pooler.logged("got SIGTERM")
        eventually(lambda: not accepts(pooler.port), "the listener is closed")
        with pytest.raises((OSError, Closed)):
            pooler.raw()
        assert session.value("select 2") == "2"
        session.terminate()
        assert pooler.wait_exit() == 0


@pytest.mark.needs("shutdown waits for clients")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(pooled, number):
    """SIGTERM or SIGINT twice: immediate end with 0."""
    pooler = pooled()
    with pooler.raw() as session:
        session.query("begin")
        pooler.signal(number)
        pooler.logged("got SIG")
        time.sleep(0.2)
        assert pooler.process.poll() is None
        pooler.signal(number)
        assert pooler.wait_exit(5) == 0


@pytest.mark.needs("SIGQUIT")
def test_quit_ends_at_once(pooled, pg):
    """SIGQUIT: immediate end with 0, servers gone."""
    pooler = pooled()
    with pooler.raw() as session:
        session.query("begin")
        pooler.signal(signal.SIGQUIT)
        assert pooler.wait_exit(5) == 0
    eventually(lambda: not pg.backends("app"), "its servers are gone")


def test_a_signal_without_clients(pooled):
    """SIGINT with nothing to wait for ends at once."""
    pooler = pooled()
    pooler.signal(signal.SIGINT)
    assert pooler.wait_exit(5) == 0


def test_log_format_and_levels(pooled):
    """Timestamp, pid, level; connections and their ends are logged as the tools expect, and not when switched off."""
    pooler = pooled()
    with pooler.raw() as session:
        session.value("select 1")
    pooler.logged(r"C-0x[0-9a-f]+: app/alice@127\.0\.0\.1:\d+ closing because: ")
    assert re.search(rf"^\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{{3}} \S+ \[{pooler.pid}\] LOG ", pooler.log(), re.M)
    assert re.search(r"login attempt: db=app user=alice tls=no", pooler.log())
    assert re.search(r"S-0x[0-9a-f]+: app/alice@127\.0\.0\.1:\d+ new connection to server \(from 127\.0\.0\.1:\d+\)", pooler.log())
    quiet = pooled(log_connections=0, log_disconnections=0)
    with quiet.raw() as session:
        session.value("select 1")
    assert quiet.alive()
    assert "login attempt: db=app" not in quiet.log() and "app/alice" not in quiet.log()


def test_the_log_file_is_reopened(pooled):
    """RELOAD after the log file was moved away: a new one is begun."""
    pooler = pooled()
    moved = pooler.folder / "pooler.log.1"
    pooler.log_path.rename(moved)
    pooler.reload()
    with pooler.raw() as session:
        session.value("select 1")
    eventually(lambda: "login attempt" in pooler.log(), "the new log file is written")


def test_stats_line(pooled):
    """A line with the rates, each stats_period."""
    pooler = pooled(stats_period=1)
    with pooler.raw() as session:
        session.value("select 1")
        pooler.logged(r"LOG stats: \d+ xacts/s, \d+ queries/s, .*in \d+ B/s, out \d+ B/s, xact \d+ us, query \d+ us,? wait \d+ us")


def test_quiet_and_verbose(pooled):
    """-q says nothing on stderr, without it the log goes there too; -v adds DEBUG lines."""
    quiet = pooled()
    with quiet.raw() as session:
        session.value("select 1")
    assert quiet.stderr_path.read_text() == ""
    loud = pooled(arguments=["-v"])
    with loud.raw() as session:
        session.value("select 1")
    assert " LOG " in loud.stderr_path.read_text()
    assert " DEBUG " in loud.output()


def test_out_of_file_descriptors(pooled):
    """No descriptor left: new clients wait or are refused, those inside go on, and when there is room all is well again."""
    pooler = pooled(limits=["prlimit", "--nofile=80:80", "--"], max_client_conn=1000, default_pool_size=2)
    with pooler.raw() as inside:
        inside.value("select 1")
        crowd = []
        for _ in range(120):
            try:
                session = socket.create_connection(pooler.address, timeout=2)
                session.sendall(startup({"user": "alice", "database": "app"}))
                crowd.append(session)
            except OSError:
                break
        for n in range(20):
            assert inside.value(f"select {n}") == str(n)
            time.sleep(0.05)
        assert pooler.process.poll() is None
        assert pooler.open_files() <= 80
        for session in crowd:
            session.close()
        time.sleep(0.2)

        def served():
            try:
                with pooler.raw(timeout_s=8) as late:
                    return late.value("select 1") == "1"
            except (Closed, OSError):
                return False

        eventually(served, "new clients are served again", timeout_s=20)
        assert inside.value("select 1") == "1"


def test_out_of_file_descriptors_costs_no_cpu(pooled):
    """While it cannot accept, it does not spin."""
    pooler = pooled(limits=["prlimit", "--nofile=60:60", "--"], max_client_conn=1000)
    crowd = []
    for _ in range(90):
        try:
            crowd.append(socket.create_connection(pooler.address, timeout=1))
        except OSError:
            break
    time.sleep(0.5)
    assert share_of_cpu(pooler.pid, 1.5) < 0.5
    for session in crowd:
        session.close()


def cpu_seconds(pid):
    """User and system time of a process."""
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share_of_cpu(pid, seconds):
    """The share of a processor that a process takes in a window of at least this length. A process that spins has all that it is given: a
    machine with other work makes this smaller, never larger."""
    began, before = time.monotonic(), cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.monotonic() - began)


def test_idle_costs_no_cpu(pooled):
    """With two hundred idle clients it sleeps."""
    pooler = pooled()
    clients = [pooler.raw() for _ in range(200)]
    for client in clients:
        client.query("select 1")
    assert share_of_cpu(pooler.pid, 2) < 0.15
    for client in clients:
        client.hang_up()


@pytest.mark.needs("a signal to stop ends SUSPEND")
def test_a_signal_to_stop_ends_suspend(pooled):
    """SIGTERM during SUSPEND: clients finish what they do, and the process ends when they are gone."""
    pooler = pooled()
    with pooler.raw() as session:
        session.query("begin")
        with pooler.console() as console:
            console.query("suspend")
            pooler.signal(signal.SIGTERM)
            assert session.value("select 1") == "1"
            assert session.query("commit").status == "I"
    assert pooler.wait_exit() == 0


def test_the_file_descriptor_limit_is_logged(pooled):
    """The start says how many descriptors there are and how many may be needed."""
    pooler = pooled()
    pooler.logged(r"kernel file descriptor limit: \d+ \(hard: \d+\); max_client_conn: 500, max expected fd use: \d+")


def test_the_start_is_logged(pooled):
    """`process up` and each address that is listened on."""
    pooler = pooled()
    pooler.logged("process up")
    pooler.logged(rf"listening on 127\.0\.0\.1:{pooler.port}")
    pooler.logged(rf"listening on unix:{re.escape(pooler.unix_address)}")


def test_the_binary_is_the_one_meant():
    """A guard for the suite itself: the binary under test exists and can be run."""
    assert os.access(binary(), os.X_OK), f"{binary()} is not there; build it or set POOLER"
