"""The short form of the proof of the query cache: every answer is checked while writers, faults and DDL change what is read."""

import subprocess
import sys

from harness.machine import TESTS

# Each fault happens at least once: the standby is silent three times, and the walsender is killed after seven seconds.
SHORT = ["--hits", "20000", "--seconds-min", "8", "--fault-s", "7", "--readers", "6", "--pause-ms", "60"]


def test_every_answer_is_right_under_writers_and_faults():
    """No answer is too old, none misses the client's own change, none goes back in time, and none is another session's."""
    ran = subprocess.run([sys.executable, TESTS / "cache" / "proof.py", *SHORT], capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
