"""Clients with ledgers in processes of their own, which may run in a network namespace. Each process reports every change as it is answered.

`Crowd` starts the processes and collects what they report. A client connects again after a failure, and gives up an answer that does not come in
its time (`patience_s`), as applications do.
"""

import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from dataclasses import astuple

import psycopg

from failover import ledger
from harness.machine import TESTS, dies_with_us, eventually

REFUSED = "refused"
"""What a client notes of an attempt to connect that failed. It has no number in the ledger."""

PROCESSES = 4
"""Clients connect again at the same moment, and one process would have them wait for each other's work."""

RETRY_S = 0.1
"""The pause after an attempt to connect that failed."""


class Crowd:
    """Clients at work, from `with` until its end. `books` has what each was told, in the order in which it was told."""

    numbers = 0

    def __init__(self, host, conninfo, clients, think_s, patience_s):
        first = Crowd.numbers
        Crowd.numbers += clients
        self.books = {number: [] for number in range(first, first + clients)}
        self.commands = []
        for part in range(min(PROCESSES, clients)):
            numbers = [str(number) for number in list(self.books)[part::PROCESSES]]
            words = ["-m", "failover.crowd", conninfo, str(think_s), str(patience_s), *numbers]
            self.commands.append(host.inside(*dies_with_us("KILL"), sys.executable, *words))
        self.processes, self.threads = [], []

    def __enter__(self):
        for command in self.commands:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TESTS)
            self.processes.append(process)
            self.threads.append(threading.Thread(target=self._read, args=(process.stdout,), daemon=True))
            self.threads[-1].start()
        return self

    def _read(self, output):
        for line in output:
            change = ledger.Change(*json.loads(line))
            self.books[change.client].append(change)

    def __exit__(self, *_):
        for process in self.processes:
            process.stdin.close()
        try:
            codes = [process.wait(60) for process in self.processes]
        except subprocess.TimeoutExpired:
            for process in self.processes:
                process.kill()
            raise
        for thread in self.threads:
            thread.join(10)
        assert not any(codes), f"the clients ended with {codes}"

    def all_have_written_since(self, moment_s):
        """Each client was told `committed` of a change that began after this moment."""
        assert all(process.poll() is None for process in self.processes), "clients have ended"
        return all(any(c.told == ledger.COMMITTED and c.began_s > moment_s for c in book[-20:]) for book in self.books.values())

    def wait_until_all_have_written_since(self, moment_s, what, timeout_s=60):
        """Waits until each client was told `committed` of a change that began after this moment; a failure shows what the others were told."""
        try:
            eventually(lambda: self.all_have_written_since(moment_s), what, timeout_s)
        except AssertionError as failure:
            told = [book[-5:] for book in self.books.values() if not any(c.told == ledger.COMMITTED and c.began_s > moment_s for c in book[-20:])]
            raise AssertionError(
                f"{failure}: {len(told)} clients are without an answer for {time.monotonic() - moment_s:.1f} s, one of them {told[0]}"
            ) from None

    def changes(self):
        """All changes of all clients; attempts to connect are none."""
        return [change for book in self.books.values() for change in book if change.told != REFUSED]


class Client:
    """One client of a process."""

    def __init__(self, number, conninfo, think_s, patience_s):
        self.number, self.conninfo, self.think_s, self.patience_s = number, conninfo, think_s, patience_s

    async def run(self, ends):
        """Writes until `ends` is set."""
        connection, n = None, 0
        while not ends.is_set():
            began_s = time.monotonic()
            if connection is None:
                connection = await self._connect(began_s)
                continue
            entry = ledger.Change(self.number, n, began_s)
            n += 1
            hang_up = asyncio.get_running_loop().call_later(self.patience_s, self._give_up, connection)
            await ledger.change(connection, entry)
            report(entry)
            connection = await ledger.usable_after(connection, entry)
            hang_up.cancel()
            if connection:
                await asyncio.sleep(random.uniform(0, 2 * self.think_s))
        if connection:
            await connection.close()

    async def _connect(self, began_s):
        try:
            return await psycopg.AsyncConnection.connect(self.conninfo, autocommit=True)
        except (psycopg.Error, OSError) as error:
            report(ledger.Change(self.number, -1, began_s, REFUSED, time.monotonic(), why=str(error).strip().replace("\n", " ")))
            await asyncio.sleep(RETRY_S)
            return None

    @staticmethod
    def _give_up(connection):
        """Ends the connection below the driver, which would first ask the server to cancel the statement, and wait for that."""
        if not connection.closed:
            with socket.socket(fileno=os.dup(connection.fileno())) as below:
                below.shutdown(socket.SHUT_RDWR)


def report(entry):
    """Tells the process that has started this one."""
    print(json.dumps(astuple(entry)), flush=True)


async def work(conninfo, think_s, patience_s, numbers):
    """Runs the clients with these numbers until standard input ends."""
    ends = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait_for_the_end():
        sys.stdin.read()
        loop.call_soon_threadsafe(ends.set)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    await asyncio.gather(*(Client(number, conninfo, think_s, patience_s).run(ends) for number in numbers))


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), [int(word) for word in sys.argv[4:]]))
