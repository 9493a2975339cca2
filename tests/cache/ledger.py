"""What writers were told and readers have seen, in memory that all processes of the proof share."""

import mmap
import time
from array import array

from .world import CLOCKS

VALUES_MAX = 100_000
"""The highest value of a clock. A clock that has reached it stands still."""

BEHIND_MS_MAX = 10_000
"""Answers that were further behind (ms) are counted as this."""

SHAPES_MAX = 10_000
"""The number of names that the column of `shaped` may have."""

VIOLATIONS = {
    "too old": "a change was acknowledged longer ago than the limit, and the answer did not show it",
    "own change": "a client's own acknowledged change was not shown on its connection",
    "back in time": "less was shown than the connection had seen before",
    "other session": "the rows were those of a session with other settings",
    "never committed": "a value was shown that no committed transaction has written",
    "definitions": "a changed definition or right was not regarded in time",
}
"""The kinds of violations, each with what it means."""


class Shared:
    """Numbers of the same kind, in memory that forked processes share."""

    def __init__(self, kind, length):
        self._memory = mmap.mmap(-1, max(1, length * array(kind).itemsize))
        self.numbers = memoryview(self._memory).cast(kind)


class Ledger:
    """The times of changes, and the counts of the checks. Each process counts in a part of its own: readers are numbered first, then writers."""

    def __init__(self, processes):
        self._acknowledged = Shared("d", CLOCKS * (VALUES_MAX + 2)).numbers
        self._behind = Shared("q", processes * BEHIND_MS_MAX).numbers
        self._faults = Shared("q", processes * len(VIOLATIONS)).numbers
        self._ended = Shared("q", 1).numbers
        self.begun = Shared("q", CLOCKS).numbers
        """For each clock the highest value that a transaction has tried to commit."""
        self.shapes = Shared("d", SHAPES_MAX).numbers
        """For each name of the column of `shaped` the time from which on it must be shown; 0 until it is known."""
        self.rights = Shared("d", 1).numbers
        """The time from which on `bob` must be refused to read `guarded`; 0 while he may read it."""

    def acknowledge(self, clock, value):
        """Notes that a writer was told that the transaction which wrote the value is committed."""
        self._acknowledged[clock * (VALUES_MAX + 2) + value] = time.monotonic()

    def acknowledged_s(self, clock, value):
        """The time at which this was noted; 0 if it was not."""
        return self._acknowledged[clock * (VALUES_MAX + 2) + value]

    def end(self):
        """Has all processes end."""
        self._ended[0] = 1

    def is_over(self):
        """Whether `end` was called."""
        return self._ended[0] == 1

    def count(self, number, behind_s):
        """Counts an answer by the time since the oldest acknowledged change that it did not show; 0 if it showed all."""
        self._behind[number * BEHIND_MS_MAX + min(int(behind_s * 1000), BEHIND_MS_MAX - 1)] += 1

    def behind(self):
        """The number of answers by that time, in milliseconds."""
        return [sum(self._behind[behind_ms::BEHIND_MS_MAX]) for behind_ms in range(BEHIND_MS_MAX)]

    def fault(self, number, kind):
        """Counts a violation."""
        self._faults[number * len(VIOLATIONS) + list(VIOLATIONS).index(kind)] += 1

    def faults(self):
        """The number of violations of each kind."""
        return {kind: sum(self._faults[at :: len(VIOLATIONS)]) for at, kind in enumerate(VIOLATIONS)}
