"""Work for a pooler's workers, and what they count."""

import re
import subprocess

from .monitoring import fetch


def load(pooler, seconds, clients=20):
    """Starts clients that send one short statement after the other; with twenty it is more than enough for one worker to be busy."""
    where = ["-h", "127.0.0.1", "-p", str(pooler.port), "-U", "alice"]
    command = ["pgbench", "-n", "-S", *where, "-c", str(clients), "-j", str(min(clients, 2)), "-T", str(seconds), "bench"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def counted(http, what):
    """The counter `pgweir_worker_WHAT_total` of all workers together, from the HTTP server on this port."""
    status, page = fetch(f"http://127.0.0.1:{http}/metrics")
    assert status == 200
    return sum(map(float, re.findall(rf"^pgweir_worker_{what}_total{{.*?}} (\S+)", page, re.MULTILINE)))
