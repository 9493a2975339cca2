"""pgbench through the pooler, in the background: what failed, and how long the longest wait was."""

import re
import shutil
import signal
import subprocess
from pathlib import Path

from .machine import eventually, scratch_folder


class Pgbench:
    """TPC-B through the pooler's database `bench`, until the block ends."""

    def __init__(self, pooler, clients=10, seconds=600):
        self.folder = scratch_folder("load")
        self.command = [
            "pgbench", "-n", "-c", str(clients), "-j", "2", "-T", str(seconds), "-l", "--log-prefix", str(self.folder / "log"),
            "-h", "127.0.0.1", "-p", str(pooler.port), "-U", "alice", "bench",
        ]  # fmt: skip
        self.process, self.output = None, ""
        self.done, self.failed, self.disconnected, self.longest_s = 0, 0, 0, 0.0
        self.told = []
        # When each transaction was done, as `time.time` has it.
        self.ended_s = []

    def __enter__(self):
        # A shell's background jobs ignore SIGINT, and so would pgbench, which reports when it gets one.
        heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **heard)
        self.goes_on()
        return self

    def transactions(self):
        """So many are done, about: a line of the log has 35 bytes."""
        return sum(path.stat().st_size for path in Path(self.folder).glob("log*")) // 35

    def goes_on(self, more=1000):
        """Waits until so many further transactions are done."""
        before = self.transactions()
        eventually(lambda: self.transactions() > before + more or self.process.poll() is not None, "transactions go on", timeout_s=60)

    def __exit__(self, *_):
        # pgbench reports at the end of its time only, or when it is told to stop in this way.
        self.process.send_signal(signal.SIGINT)
        self.output = self.process.communicate(timeout=60)[0]
        self.count()
        shutil.rmtree(self.folder, ignore_errors=True)

    def count(self):
        """Reads what pgbench said, and its log of transactions: client, number, microseconds, file, second, microsecond."""
        for path in Path(self.folder).glob("log*"):
            # The last line may be a part of one.
            for line in path.read_text().rpartition("\n")[0].splitlines():
                words = line.split()
                if words[2].isdigit():
                    self.done += 1
                    self.ended_s.append(int(words[4]) + int(words[5]) / 1e6)
                    self.longest_s = max(self.longest_s, int(words[2]) / 1e6)
                else:
                    self.failed += 1
        lost = re.findall(r"client \d+ .*aborted.*", self.output)
        self.told = [re.sub(r".*client \d+ ", "pgbench: ", line) for line in lost]
        self.failed += len(lost)
        self.disconnected = sum(bool(re.search(r"FATAL|died|closed", line)) for line in lost)
