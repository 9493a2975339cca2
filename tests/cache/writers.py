"""The writers: each in a process of its own, with its own clocks. Half of them do not pass through pgweir."""

import random
import time

from .ledger import VALUES_MAX
from .world import CLOCKS, change, commit_mode, faces, weights


class Writer:
    """One connection. `reads_back`: it goes through pgweir, and each change is read back on it."""

    def __init__(self, number, readers, writers, connection, reads_back, ledger, report, pause_s):
        self.number, self.ledger, self.report, self.pause_s = readers + number, ledger, report, pause_s
        self.connection, self.reads_back = connection, reads_back
        self.random = random.Random(1000 + number)
        self.clocks = list(range(number, CLOCKS, writers))
        self.weights = weights(self.clocks)
        self.values = dict.fromkeys(self.clocks, 0)
        self.faces = [face for face in faces() if not face.tenant]

    def run(self):
        """Raises its clocks until the ledger says that all is over."""
        while not self.ledger.is_over():
            (clock,) = self.random.choices(self.clocks, self.weights)
            if self.values[clock] < VALUES_MAX - 1:
                self._raise(clock)
            time.sleep(self.random.uniform(0, 2 * self.pause_s))

    def _raise(self, clock):
        value = self.values[clock] + 1
        made = change(clock, value)
        if self.random.random() < 0.05 and made.texts:
            # A transaction that is rolled back changes nothing, whatever it has written.
            undone = change(clock, value + 1) if not made.afterwards else made
            self.connection.execute("; ".join(["begin", *undone.texts, "rollback"]))
        self.ledger.begun[clock] = value
        mode = f"set local synchronous_commit = {commit_mode(self.random)}"
        if made.copied:
            self._copy(mode, *made.copied)
        else:
            self.connection.execute("; ".join(["begin", mode, *made.texts, "commit"]))
        self.values[clock] = value
        self.ledger.acknowledge(clock, value)
        if self.reads_back:
            self._read_back(clock, value)
        if made.afterwards:
            self.connection.execute("; ".join(["begin", mode, *made.afterwards, "commit"]))

    def _copy(self, mode, table, value):
        with self.connection.transaction():
            self.connection.execute(mode)
            with self.connection.cursor().copy(f"copy {table} from stdin") as copy:
                copy.write(f"{value}\n")

    def _read_back(self, clock, value):
        for face in self.faces:
            if face.clock == clock:
                for _ in range(2):
                    shown = self.connection.execute(face.plain()).fetchone()
                    if shown is None or shown[0] < value:
                        self.ledger.fault(self.number, "own change")
                        self.report.put(f"own change: {shown} in place of {value} ({face.plain()})")
