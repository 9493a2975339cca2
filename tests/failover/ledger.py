"""Clients that keep ledgers: each notes what it was told of each of its changes. In the end their ledgers are held against the database."""

import asyncio
import threading
import time
from dataclasses import dataclass, field

import psycopg

TABLE = "create table ledger (client int, n int); grant all on ledger to public"

COMMITTED, ROLLED_BACK, UNKNOWN = "committed", "rolled back", "unknown"

NOT_DONE = {"40001", "57P03"}
"""What says that the change was rolled back, or never begun."""

PAUSE_S = 0.005
"""Clients think: a series shows how long they wait, not how fast it goes."""


@dataclass
class Change:
    """One change, and what its client was told. Times are those of `time.monotonic`; `xid` is known if the insert was answered."""

    client: int
    n: int
    began_s: float
    told: str = UNKNOWN
    told_s: float = 0.0
    xid: int | None = None
    why: str = ""

    @property
    def key(self):
        return (self.client, self.n)


@dataclass
class Book:
    """All changes of one client, and how often its connection ended."""

    changes: list = field(default_factory=list)
    disconnected: int = 0
    refused: list = field(default_factory=list)


async def change(connection, entry):
    """Makes the change in one of three ways: a transaction, and a single statement of either protocol."""
    values = f"values ({entry.client}, {entry.n}) returning xmin::text"
    way = entry.n % 3
    may_have_begun = way != 0
    try:
        if way == 0:
            await connection.execute("begin")
            cursor = await connection.execute(f"insert into ledger {values}")
            entry.xid = int((await cursor.fetchone())[0])
            may_have_begun = True
            await connection.execute("commit")
        else:
            parameters = (entry.client, entry.n) if way == 1 else None
            text = "insert into ledger values (%s, %s) returning xmin::text" if way == 1 else f"insert into ledger {values}"
            cursor = await connection.execute(text, parameters)
            entry.xid = int((await cursor.fetchone())[0])
        entry.told = COMMITTED
    except psycopg.Error as error:
        # Without a COMMIT nothing is committed, whatever the error says.
        entry.told = ROLLED_BACK if error.sqlstate in NOT_DONE or not may_have_begun else UNKNOWN
        entry.why = f"{error.sqlstate}: {str(error).strip()}".replace("\n", " ")
    entry.told_s = time.monotonic()


async def usable_after(connection, entry):
    """The connection to go on with after this change, or None if it has ended."""
    try:
        if entry.told != COMMITTED and not connection.broken and connection.info.transaction_status.name != "IDLE":
            await connection.execute("rollback")
    except psycopg.Error:
        pass
    if not connection.broken:
        return connection
    await connection.close()
    return None


class Ledgers:
    """Clients at work through the pooler's database, from `with` until its end. `books` has what they were told."""

    numbers = 0

    def __init__(self, pooler, clients, database="bench"):
        self.dsn = pooler.dsn(database, sslmode="disable", gssencmode="disable", connect_timeout=90)
        first = Ledgers.numbers
        Ledgers.numbers += clients
        self.books = {number: Book() for number in range(first, first + clients)}
        self.ends = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join(120)
        assert not self.thread.is_alive(), "a client still waits"

    async def _run(self):
        await asyncio.gather(*(self._client(number, book) for number, book in self.books.items()))

    async def _client(self, number, book):
        connection = None
        while not self.ends.is_set():
            if connection is None:
                try:
                    connection = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True)
                except psycopg.Error as error:
                    book.refused.append(str(error).strip())
                    await asyncio.sleep(0.1)
                    continue
            entry = Change(number, len(book.changes), time.monotonic())
            await change(connection, entry)
            book.changes.append(entry)
            connection = await usable_after(connection, entry)
            book.disconnected += connection is None
            await asyncio.sleep(PAUSE_S)
        if connection:
            await connection.close()

    def changes(self):
        """All changes of all clients."""
        return [change for book in self.books.values() for change in book.changes]

    def all_have_written_since(self, moment_s):
        """Each client was told `committed` of a change that began after this moment."""
        return all(any(c.told == COMMITTED and c.began_s > moment_s for c in book.changes[-20:]) for book in self.books.values())


@dataclass
class Verdict:
    """What a ledger that is held against the database comes to."""

    told: dict
    lost: list
    behind_fork: list
    wrongly_told: list
    doubled: list
    unknown_there: int

    def faults(self):
        """What must not be, as texts."""
        kinds = (("lost", self.lost), ("wrongly told", self.wrongly_told), ("doubled", self.doubled))
        return [f"{kind}: {change}" for kind, changes in kinds for change in changes]


def compare(changes, rows, lost_xids=frozenset(), promoted_s=float("inf")):
    """Holds what clients were told against the database. `rows`: client, number, how often it is there.

    `lost_xids` are the transactions whose commit lies behind the point at which the new primary left the old one's history.
    With asynchronous replication such a change is lost with the old primary if that had acknowledged it, before `promoted_s`: afterwards
    it was dead, or frozen until pgweir knew the new one, so that nothing it said was to be believed.
    """
    there = {(client, n): times for client, n, times in rows}
    verdict = Verdict(dict.fromkeys((COMMITTED, ROLLED_BACK, UNKNOWN), 0), [], [], [], [], 0)
    for one in changes:
        times = there.get(one.key, 0)
        verdict.told[one.told] += 1
        if times > 1:
            verdict.doubled.append(one)
        if one.told == COMMITTED and not times:
            if one.xid in lost_xids:
                (verdict.behind_fork if one.told_s < promoted_s else verdict.wrongly_told).append(one)
            else:
                verdict.lost.append(one)
        if one.told == ROLLED_BACK and times:
            verdict.wrongly_told.append(one)
        verdict.unknown_there += one.told == UNKNOWN and times > 0
    return verdict
