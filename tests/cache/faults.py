"""What happens during the proof: a standby that falls silent, walsenders that are killed, definitions and rights that change."""

import threading
import time

from .ledger import SHAPES_MAX

SILENT_S = 1.0
"""So long the synchronous standby confirms nothing; transactions that wait for it are in the stream, and not visible."""


class Faults:
    """Repeats each fault in a thread of its own until `end`, or until it raises."""

    def __init__(self, ledger, primary, standby, pooler, window_s, every_s):
        self.ledger, self.primary, self.standby, self.pooler = ledger, primary, standby, pooler
        self.window_s = window_s
        self.counts = {"standby silent": 0, "walsender killed": 0, "definitions changed": 0}
        self.error = None
        self._ends = threading.Event()
        ways = {self._silence: every_s / 3, self._kill: every_s, self._define: every_s}
        self._threads = [threading.Thread(target=self._repeat, args=way, daemon=True) for way in ways.items()]
        self._column = 0
        for thread in self._threads:
            thread.start()

    def end(self):
        """Ends the faults; whatever they have stopped goes on."""
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, act, every_s):
        try:
            while not self._ends.wait(every_s):
                act()
        except Exception as error:  # noqa: BLE001: it is said at the end
            self.error = error

    def _silence(self):
        with self.standby.frozen(whole=True):
            self.counts["standby silent"] += 1
            self._ends.wait(SILENT_S)

    def _kill(self):
        killed = self.primary.sql("select pg_terminate_backend(active_pid) from pg_replication_slots where temporary and active")
        self.counts["walsender killed"] += len(killed)

    def _define(self):
        """Renames the column of `shaped`, and takes or gives a right, in turn past pgweir and through it."""
        is_past = self._column % 2 == 0
        with self._connect(is_past) as connection:
            connection.execute("set synchronous_commit = local")
            if self._column + 2 < SHAPES_MAX:
                connection.execute(f"alter table shaped rename column g{self._column} to g{self._column + 1}")
                self._column += 1
                self.ledger.shapes[self._column] = self._due(is_past)
            if self._column % 4 < 2:
                connection.execute("revoke all on guarded from public")
                self.ledger.rights[0] = self._due(is_past)
            else:
                self.ledger.rights[0] = 0
                connection.execute("grant all on guarded to public")
        self.counts["definitions changed"] += 1

    def _connect(self, is_past):
        return self.primary.connect(application_name="past pgweir") if is_past else self.pooler.connect(user="postgres")

    def _due(self, is_past):
        """The time from which on a change that was just acknowledged must be regarded."""
        return time.monotonic() + (self.window_s if is_past else 0)
