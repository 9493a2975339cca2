"""Pages of the documentation whose commands are run: a folder stands for the reader's machine.

What a container lacks stands in for the real thing: `sudo` and `apt-get` are a few lines each, `systemctl` starts and reloads by the
command lines of the units.
"""

import os
import re
import shutil
import subprocess
import textwrap

from .machine import ACCOUNT, ACCOUNT_NAME, REPOSITORY, free_port, give, scratch_folder
from .pooler import binary

UNIT = REPOSITORY / "deploy" / "systemd" / "pgweir.service"
PGBOUNCER = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin")

PASSWORD = "correct horse"
"""What the page's reader types for every password."""


def blocks(page, language="sh"):
    """The text of each block of a language, in the page's order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


class Machine:
    """A folder that stands for a machine whose reader follows a page. The page's paths and ports are moved into the folder."""

    def __init__(self):
        self.root = scratch_folder("page")
        self.port, self.trial_port = free_port(), free_port()
        self.moved = {
            **{path: f"{self.root}{path}" for path in ("/etc/pgbouncer", "/etc/pgweir", "/etc/systemd", "/var/log", "/tmp/pgweir-trial")},
            "/var/run": f"{self.root}/run",
            "/run/pgweir": f"{self.root}/run/pgweir",
            "/usr/share/pgweir": f"{self.root}/usr/share/pgweir",
            "/run/postgresql": f"{self.root}/run/postgresql",
            "6432": str(self.port),
            "6433": str(self.trial_port),
            "9127": str(free_port()),
        }
        for folder in ("etc/pgbouncer/tls", "etc/systemd", "run/postgresql", "var/log/postgresql", "tmp", "bin", "units"):
            (self.root / folder).mkdir(parents=True)
        give(self.root)
        self.program("sudo", 'account=\nif [ "$1" = -u ]; then account=$2; shift 2; fi\n'
            f'if [ -n "$account" ]; then exec setpriv --reuid {ACCOUNT.pw_uid} --regid {ACCOUNT.pw_gid} --clear-groups -- "$@"; fi\nexec "$@"')  # fmt: skip
        # What the package brings. A service that runs is reloaded, as the package's script does. The program is another file
        # each time, so that the unit sees that it was replaced.
        packaged = f"rm -f '{self.root}/bin/pgweir'\ncp '{binary()}' '{self.root}/bin/pgweir'\n"
        for folder in ("etc/pgweir", "run/pgweir", "var/log/pgweir"):
            packaged += f"install -d -o {ACCOUNT_NAME} '{self.root}/{folder}'\n"
        packaged += f"install -D -m 644 -t '{self.root}/usr/share/pgweir' '{UNIT.parent}/pgweir-vip.conf'\n"
        packaged += f"if [ -e '{self.root}/units/pgweir.pid' ]; then systemctl reload pgweir; fi"
        self.program("apt-get", packaged)
        # The unit's log is its file.
        self.program("journalctl", f"cat '{self.root}/var/log/pgweir/pgweir.log'")
        self.program("systemctl", SYSTEMCTL.format(root=self.root, account=ACCOUNT_NAME, port=self.port))
        self.write("units/pgbouncer", f"{PGBOUNCER} -q {self.root}/etc/pgbouncer/pgbouncer.ini")
        for key, name in (("ExecStart", "pgweir"), ("ExecReload", "pgweir.reload")):
            [command] = re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)
            command = self.move(command).replace("/usr/bin/pgweir", f"{self.root}/bin/pgweir")
            self.write(f"units/{name}", command.replace("$$", "$"))

    def move(self, text):
        """The text with the page's paths and ports moved into the folder. /var/run is one with /run."""
        text = re.sub("|".join(map(re.escape, sorted(self.moved, key=len, reverse=True))), lambda found: self.moved[found[0]], text)
        return text.replace("root:pgweir", f"root:{ACCOUNT.pw_gid}")

    def write(self, name, text):
        (self.root / name).write_text(text)

    def program(self, name, text):
        """A shell script in the folder of programs."""
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/bash\nset -e\n{text}\n")
        path.chmod(0o755)

    def run(self, text):
        """Runs commands as the page's reader types them: in one shell, which ends at the first failure."""
        environment = os.environ | {"PATH": f"{self.root}/bin:{os.environ['PATH']}", "PGPASSWORD": PASSWORD, "PGSSLMODE": "prefer"}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"export DBNAME=shop DBUSER=shop\n{self.move(text)}"],
            capture_output=True, text=True, cwd=self.root, env=environment, timeout=120,
        )  # fmt: skip
        logs = "".join(f"{path}:\n{path.read_text(errors='replace')[-1500:]}" for path in self.root.glob("**/*.log"))
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}\n{logs}"
        return done.stdout + done.stderr

    def server(self, port):
        """What serves a port: the version that the console's clients are told."""
        return self.run(f'psql -h 127.0.0.1 -p {port} -U shop -d shop -Atc "show server_version"')

    def serving(self):
        """The program that serves the port: pgbouncer or pgweir."""
        [name] = [name for name in ("pgbouncer", "pgweir") if (self.root / "units" / f"{name}.pid").exists()]
        return name

    def end(self):
        """Ends what is left, and removes the folder."""
        for path in [found for folder in ("units", "tmp", "run/pgweir") for found in self.root.glob(f"{folder}/*.pid")]:
            subprocess.run(["kill", "-KILL", path.read_text().strip()], capture_output=True)
        shutil.rmtree(self.root, ignore_errors=True)


#: Starts and stops the units' programs, and waits until the port is open or closed, as systemd waits for READY=1 and for the end.
SYSTEMCTL = textwrap.dedent("""
    # The main process: after an online restart, the one that the pid file names.
    main() {{
        cat "{root}/run/$1/$1.pid" 2> /dev/null || cat "{root}/units/$1.pid"
    }}
    case $1 in
    start)
        setpriv --reuid {account} --regid {account} --clear-groups -- bash -c 'exec '"$(cat '{root}/units/'"$2")" > /dev/null 2>&1 < /dev/null &
        echo $! > "{root}/units/$2.pid"
        until (: > /dev/tcp/127.0.0.1/{port}) 2> /dev/null; do kill -0 $!; sleep 0.05; done
        ;;
    stop)
        pid=$(main "$2")
        kill -INT "$pid"
        while kill -0 "$pid" 2> /dev/null; do sleep 0.05; done
        rm "{root}/units/$2.pid"
        ;;
    reload)
        pid=$(main "$2")
        replaced=$(readlink "/proc/$pid/exe")
        setpriv --reuid {account} --regid {account} --clear-groups -- env MAINPID="$pid" bash -c "$(cat "{root}/units/$2.reload")"
        case $replaced in *" (deleted)") while [ "$(main "$2")" = "$pid" ]; do sleep 0.05; done ;; esac
        ;;
    restart)
        systemctl stop "$2"
        systemctl start "$2"
        ;;
    kill)
        [[ "$2 $3" == "--kill-who=main --signal=SIG"* ]]
        pid=$(main "$4")
        kill "-${{3#--signal=SIG}}" "$pid"
        ;;
    daemon-reload | enable | disable) ;;
    *) exit 1 ;;
    esac
""")
