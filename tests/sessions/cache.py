"""Reads that clients repeat: rounds with the query cache have them, so that answers are given again.

Each client reads its own tables, so an answer from the cache is PostgreSQL's answer if the cache knows whose it is, what settings it depends
on, and what the client has changed since.
"""

import random
from dataclasses import replace

from sessions.rounds import Turn

RULES = "[cache]\nall = ttl_ms=600000\n"
"""The rules of the pooler: in no round is an answer too old. `query_cache` is off unless it is drawn."""

READS = (
    "select id, v from c{n}.t order by id",
    "select count(*) from c{n}.t",
    "select v from c{n}.watched order by v limit 2",
    "select * from c{n}.shaped order by id",
    "select timestamptz '2026-01-02 03:04:05+00', interval '1 day 02:00'",
    "select float8 '0.1' + float8 '0.2', 'ä'::text, bytea '\\x00'",
    "select current_user::text",
    "select count(*) from t",
    "select 1/(count(*) - 1) from c{n}.t",
)
"""Some depend on rows, others on settings: the time zone, styles, the encoding, the role, the search_path. `{n}` is the client's number."""

SHARE = 0.5
"""How many reads a round gets, for each of its turns."""


def caches(settings):
    """Whether a pooler with these settings gives answers again."""
    return settings.get("query_cache", "off") != "off"


def with_reads(played, seed):
    """The round with reads between its turns: a read stands where its client has no open group."""
    chance = random.Random(f"reads {seed}")
    texts = {number: chance.sample(READS, 3) for number in sorted(played.startups)}
    turns = []
    for turn in played.turns:
        turns.append(turn)
        while turn.connection is None and turn.waits and turn.messages[-1][0] in "SQ" and chance.random() < SHARE:
            turns.append(_read(chance, turn.client, chance.choice(texts[turn.client]).format(n=turn.client)))
    return replace(played, turns=tuple(turns))


def _read(chance, client, text):
    """The turn that reads this, by the simple or the extended protocol."""
    if chance.random() < 0.6:
        return Turn(client, (("Q", text),))
    described = [("D", "P", "")] if chance.random() < 0.7 else []
    return Turn(client, (("P", "", text, []), ("B", "", "", []), *described, ("E", "", 0), ("S",)))
