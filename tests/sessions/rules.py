"""What may differ between a client's answers from PostgreSQL and through the pooler. Everything else has to be equal to the byte.

`Masks` takes out of both sides what no two connections share: process ids, cancel keys, object ids made meanwhile. `RULES` are the
documented differences between two messages. `Reports` and `Notifications` know the two of order. Each names the words of
docs/session-state.md that document it.
"""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest

from sessions.known import UNFOLLOWED

FIRST_OWN_OID = 16384
"""Object ids from here on are given to objects that users make."""


def fields(body):
    """An error's or notice's fields by their letter."""
    return {part[:1].decode(): part[1:].decode(errors="replace") for part in body.split(b"\0") if part}


def value(body):
    """(name, value) of a ParameterStatus."""
    name, shown = body.split(b"\0")[:2]
    return name.decode(), shown.decode(errors="replace")


class Masks:
    """Names for what differs from connection to connection, given in the order in which a client meets it."""

    def __init__(self, pids, lasting, made_up=False):
        self.pids = set(pids)
        self.made_up = made_up
        self.lasting = lasting
        self.oids = {}

    def masked(self, tag, body):
        """The message as it is compared."""
        if tag == "K":
            return tag, b"%d bytes" % len(body)
        if tag == "A" and (self.made_up or body[:4] in self.pids):
            return tag, b"own" + body[4:]
        if tag == "T":
            return tag, self._columns(body)
        if tag in "EN" and len(tag) == 1:
            return tag, tuple(sorted(fields(body).items()))
        return tag, body

    def _columns(self, body):
        """A RowDescription without the object ids of tables that were made meanwhile."""
        cut, at = [], 2
        try:
            for _ in range(struct.unpack_from("!h", body)[0]):
                end = body.index(b"\0", at) + 1
                (oid,) = struct.unpack_from("!I", body, end)
                shown = oid if oid < FIRST_OWN_OID or oid in self.lasting else self.oids.setdefault(oid, f"new{len(self.oids)}")
                cut.append((body[at:end], shown, body[end + 4 : end + 18]))
                at = end + 18
        except (ValueError, struct.error):
            return body
        return tuple(cut) if at == len(body) else body


def groups(client, lasting, made_up=False):
    """A client's answers, masked, cut behind each ReadyForQuery.

    `made_up`: the process id that the client was told may not be its server's (`MADE_UP_PID`).
    """
    masks = Masks(client.pids, lasting, made_up)
    cut, group = [], []
    for tag, body in client.told:
        group.append(masks.masked(tag, body))
        if tag == "Z":
            cut.append(group)
            group = []
    return [*cut, group] if group else cut


@dataclass(frozen=True)
class Rule:
    """A documented difference."""

    name: str
    place: str
    """The words of docs/session-state.md that document it."""
    excuses: Callable
    """Of two messages that differ: (what PostgreSQL said, what the pooler said)."""
    ends: bool = False
    """Whether the rest of the group differs, too, because one side failed."""
    last: bool = False
    """Whether nothing after it can be compared: one side did what the other did not, or is closed."""
    prepares: re.Pattern | None = None
    """It holds only for a client that prepares a text like this through the protocol, or for whose tables another session runs one."""


PLACES = set("FLR")
"""The fields of an error that say where in PostgreSQL's sources it was raised."""


def _other_place(wanted, got):
    """The same error, from the pooler itself, or of a Parse that the pooler sent ahead: with no place in PostgreSQL's sources, or another."""
    if not (wanted[0] == got[0] == "E") or ("L" in dict(got[1]) and dict(got[1])["R"] != "exec_parse_message"):
        return False
    return [f for f in wanted[1] if f[0] not in PLACES] == [f for f in got[1] if f[0] not in PLACES]


def _not_prepared(wanted, got):
    """A statement that the present server does not have, in a failed transaction."""
    return got[0] == "E" and dict(got[1])["C"] == "25P02" and dict(got[1])["R"] == "exec_parse_message" and wanted[0] in "23tTnE"


def _two_faults(wanted, got):
    """A Parse whose name is in use and whose text is refused."""
    if not (wanted[0] == got[0] == "E"):
        return False
    codes = {dict(side[1])["C"] for side in (wanted, got)}
    return "42P05" in codes and codes <= {"42P05", "42601", "42703", "42P01", "42883", "25P02"}


def _other_drew(wanted, got):
    """A value from a sequence that another client may have used since."""
    return got[0] == "E" and dict(got[1])["C"] == "55000" and (wanted[0] in "DT" or wanted[0] == "E" and dict(wanted[1])["C"] == "55000")


def _empty_for_null(wanted, got):
    """current_setting('a.b', true) of a name that another client has made known: empty in place of NULL."""
    null, empty = b"\xff\xff\xff\xff", b"\0\0\0\0"
    return wanted[0] == got[0] == "D" and wanted[1].replace(null, empty) == got[1].replace(null, empty)


def _empty_for_began(wanted, got):
    """A custom setting from the startup packet that was set to NULL by `set_config`."""
    began, empty = (struct.pack("!i", len(text)) + text for text in (b"began", b""))
    return wanted[0] == got[0] == "D" and wanted[1].replace(began, empty) == got[1]


def _no_temporary_schema(wanted, got):
    """What does not exist in pg_temp: no such schema, or nothing of the name in it. It depends on what the server had there before."""
    if not (wanted[0] == got[0] == "E"):
        return False
    codes = {dict(side[1])["C"] for side in (wanted, got)}
    schema = next((dict(side[1])["M"] for side in (wanted, got) if dict(side[1])["C"] == "3F000"), "")
    return "pg_temp" in schema and len(codes & {"42883", "42P01"}) == 1


def _unnamed_is_gone(wanted, got):
    """The unnamed statement, after the transaction in which it was prepared and bound."""
    return got[0] == "E" and dict(got[1])["C"] == "26000" and "unnamed" in dict(got[1])["M"] and wanted[0] in "2tTnE"


def _no_portal(wanted, got):
    """The unnamed portal without a Bind: on a server there may be another one of the same transaction."""
    if not (wanted[0] == "E" and dict(wanted[1])["C"] == "34000"):
        return False
    describes = dict(wanted[1])["R"] == "exec_describe_portal_message"
    return describes and got[0] == "n" or got[0] == "E" and dict(got[1])["C"] in ("55000", "25P02")


def _execute_described(wanted, got):
    """A prepared EXECUTE of what was prepared by SQL since."""
    return wanted[0] == "n" and got[0] == "T"


def _no_longer_prepared(wanted, got):
    """EXECUTE of what cannot be prepared any more under the client's own name."""
    codes = [dict(side[1])["C"] if side[0] == "E" else None for side in (wanted, got)]
    return codes == ["42P01", "26000"] and dict(got[1])["R"] == "FetchPreparedStatement"


def _execute_described_in_failure(wanted, got):
    """A prepared EXECUTE in a failed transaction: what has rows is not described there."""
    return wanted[0] == "t" and got[0] == "E" and dict(got[1])["C"] == "25P02" and dict(got[1])["R"] == "exec_describe_statement_message"


def _execute_columns(wanted, got):
    """The same, executed: its columns are said to be a table's, or not."""
    if not (wanted[0] == got[0] == "T" and isinstance(wanted[1], tuple) and isinstance(got[1], tuple)):
        return False
    return [(name, rest[2:]) for name, _, rest in wanted[1]] == [(name, rest[2:]) for name, _, rest in got[1]]


def _execute_returns(wanted, got):
    """A prepared EXECUTE of what was prepared by SQL since, executed: it has rows, or none, as it is described."""
    return {wanted[0], got[0]} == {"C", "D"} and (wanted if wanted[0] == "C" else got)[1].startswith(b"SELECT")


def _not_in_this_encoding(wanted, got):
    """A notification that pgweir cannot convert."""
    return wanted[0] == "Z" and got[0] == "E" and dict(got[1])["C"] == "0A000" and "client_encoding" in dict(got[1])["M"]


def _prepared_again(wanted, got):
    """A statement whose columns have changed: the pooler has prepared it again, and the client asks for the columns (`told.py` looks)."""
    return _is_changed_result(wanted) and got[0] in "2tT"


def _columns_are_back(wanted, got):
    """Columns that changed back: the pooler goes by what the statement was when a server described it last."""
    return _is_changed_result(got) and wanted[0] in "2tT"


def _earlier_parameters(wanted, got):
    """A text that was prepared before the table changed past the pooler: it takes the parameters that it took then."""
    return wanted[0] == got[0] == "t" and len(wanted[1]) == len(got[1])


def _earlier_parameters_are_taken(wanted, got):
    """The same for a text that PostgreSQL refuses, as it was prepared between two such changes."""
    return wanted[0] == "E" and dict(wanted[1])["C"] in ("42804", "42883") and got[0] in "2tT"


def _later_parameters_are_refused(wanted, got):
    """A text that another server has prepared between two such changes: it may mean nothing after the second one."""
    return got[0] == "E" and dict(got[1])["C"] in ("42804", "42883") and wanted[0] == "2"


def _not_shown(wanted, got):
    """A statement whose text means nothing any more, in `pg_prepared_statements`."""
    return wanted[0] == "D" and b"shaped where v = $1" in wanted[1] and got[0] in "DC"


def _begins_with_a_level(wanted, got):
    """A level for a transaction that has read at a standby: the transaction begins with it on the primary."""
    return wanted[0] == "E" and dict(wanted[1])["C"] == "25001" and "call_enum_check_hook" in dict(wanted[1]).get("R", "") and got[0] == "C"


def _is_changed_result(message):
    """PostgreSQL's "cached plan must not change result type"."""
    return message[0] == "E" and dict(message[1]).get("R") == "RevalidateCachedQuery"


def _says_why_it_was_kept(wanted, got):
    """The last error of a server that its client kept."""
    if not (wanted[0] == got[0] == "E"):
        return False
    more = set(got[1]) - set(wanted[1])
    return set(wanted[1]) < set(got[1]) and all(letter == "D" and text.startswith("Lost with the server") for letter, text in more)


EXECUTES = re.compile(r"\s*execute\b", re.IGNORECASE)
ALTERS = re.compile(r"alter table \S+ ", re.IGNORECASE)
ALTERS_BACK = re.compile(r"alter table \S+ (alter v type int|drop column)", re.IGNORECASE)

RULES = [
    Rule("places in PostgreSQL's sources", "an error that pgweir raises in PostgreSQL's place", _other_place),
    Rule("a statement not prepared in a failed transaction", "cannot be prepared there", _not_prepared, ends=True),
    Rule("a Parse with two faults", "may fail for either reason", _two_faults),
    Rule("a sequence's value from an earlier transaction", "`currval` and `lastval` fail with SQLSTATE 55000", _other_drew, ends=True),
    Rule("empty in place of NULL", "may be empty instead of NULL, if another client set it on that server", _empty_for_null),
    Rule("empty in place of the startup value", "of a custom setting from the startup packet leaves it empty", _empty_for_began),
    Rule("an unnamed statement from an earlier transaction", "later `Bind` or `Describe` of it fails with SQLSTATE 26000", _unnamed_is_gone, ends=True, last=True),
    Rule("an unnamed portal that is another's", "fails with 34000, 55000 or 25P02, or says that there are no columns", _no_portal),
    Rule("a prepared EXECUTE", "described by what the name meant when its present server prepared it", _execute_described),
    Rule("a name that can no longer be prepared", "whose text can no longer be prepared, because its table is gone", _no_longer_prepared),
    Rule("a prepared EXECUTE in a failed transaction", "described by what the name meant when its present server prepared it", _execute_described_in_failure, ends=True, prepares=EXECUTES),
    Rule("columns of a prepared EXECUTE", "described by what the name meant when its present server prepared it", _execute_columns, prepares=EXECUTES),
    Rule("rows of a prepared EXECUTE", "and it returns rows only if that had rows", _execute_returns, last=True, prepares=EXECUTES),
    Rule("a notification in another encoding", "any other one disconnects it (SQLSTATE 0A000)", _not_in_this_encoding, ends=True, last=True),
    Rule("why a client kept its server", "Lost with the server", _says_why_it_was_kept),
    Rule("a statement whose columns have changed", "pgweir prepares it again, and the client is told the new columns", _prepared_again, last=True),
    Rule("columns that changed and changed back", "the client gets 0A000 until it prepares the statement again", _columns_are_back, last=True, prepares=ALTERS_BACK),
    Rule("parameters of a text that was prepared before", "takes the parameter types that it took then", _earlier_parameters, prepares=ALTERS),
    Rule("a value for a text that was prepared before", "takes the parameter types that it took then", _earlier_parameters_are_taken, last=True, prepares=ALTERS),
    Rule("a text that was prepared between two changes", "the first execution may fail", _later_parameters_are_refused, last=True, prepares=ALTERS),
    Rule("a statement that is not shown", "lacks those whose text can no longer be prepared", _not_shown, last=True, prepares=ALTERS),
    Rule("a level after a read at a standby", "begins the transaction on the primary, with that level", _begins_with_a_level, last=True),
    Rule("a temporary schema that is there", "a name in `pg_temp` that does not exist", _no_temporary_schema),
]
NOTICE_MISSING = "the notice is missing if pgweir answers the `Parse` itself"
NOTIFIED_LATE = "A client that sends a pipeline gets its own notifications after the pipeline's last answer"
NOTIFIED_MORE = "after an `UNLISTEN` in a pipeline or transaction notifications may still arrive until then"
NOTIFIED_IN_ANOTHER_ORDER = "order between two channels | may differ around a `LISTEN`"
MADE_UP_PID = "The process id that the client gets is then made up"
REPORTED_TWICE = "a client that set it at login gets the server's value first and then its own"
"""The words that document what `Notifications` and `Reports` allow."""


EQUAL, EXCUSED, DIFFERENT, LAST = range(4)
"""What became of a group: equal; documented; neither; documented, and nothing after it can be compared."""


def excused(wanted, got, rules):
    """Whether all that differs in a group is documented."""
    result = EQUAL
    for at, (theirs, ours) in enumerate(zip_longest(wanted, got, fillvalue=("nothing", b""))):
        if theirs == ours:
            continue
        by = next((rule for rule in rules if "nothing" not in (theirs[0], ours[0]) and rule.excuses(theirs, ours)), None)
        if by is None:
            return DIFFERENT
        result = EXCUSED
        if by.last:
            return LAST
        if by.ends:
            if any(tag in "13" for tag, *_ in wanted[at:]):
                # What PostgreSQL prepared or closed there, the pooler skipped.
                return LAST
            return EXCUSED if wanted[-1:] == got[-1:] else DIFFERENT
    return result


def difference(wanted, got, started, rules=RULES, prepared=()):
    """The first group that differs and that no rule excuses: (its number, PostgreSQL's, the pooler's). None: the answers are equal.

    `started`: the names in the client's startup packets; `prepared`: the texts that it prepares through the protocol, and another session's.
    """
    rules = [rule for rule in rules if rule.prepares is None or any(map(rule.prepares.match, prepared))]
    reports, notices = Reports(started), Notifications()
    for number in range(max(len(wanted), len(got))):
        ours = got[number] if number < len(got) else []
        theirs = wanted[number] if number < len(wanted) else []
        if not reports.excuse(theirs, ours) or not notices.excuse(theirs, ours):
            return number, theirs, ours
        theirs, ours = _asked_for(theirs), _asked_for(ours)
        what = excused(theirs, ours, rules)
        if what == LAST:
            return None
        if what == DIFFERENT:
            return number, wanted[number] if number < len(wanted) else [], got[number] if number < len(got) else []
    if lost := notices.lost():
        return len(wanted), lost, []
    return None


def channel(notification):
    """The channel of a masked notification."""
    body = notification[1]
    return (body[3:] if body.startswith(b"own") else body[4:]).split(b"\0")[0]


class Notifications:
    """Compares what a client is notified of: the same, in the same order.

    Documented (`NOTIFIED_LATE`): a client that sends more at once is told of its
    own notifications after the last answer. The order of channels may differ (`NOTIFIED_IN_ANOTHER_ORDER`).
    """

    def __init__(self):
        self.late = []
        self.since_unlisten = self.WHILE
        self.idle = True

    WHILE = 8
    """For how many groups, without those within its transaction, a client may still be notified after an UNLISTEN (`NOTIFIED_MORE`)."""

    def excuse(self, wanted, got):
        """Notes what a group tells; whether that is right."""
        ends = any(tag == "C" and body in (b"UNLISTEN\0", b"DISCARD ALL\0") for tag, body in got)
        # Within a transaction nothing is told.
        self.since_unlisten = 0 if ends else self.since_unlisten + (got[-1:] != [("Z", b"T")])
        if wanted and wanted[0][0] == "connect" and self.lost():
            return False
        self.idle = got[-1:] == [("Z", b"I")]
        self.late += [message for message in wanted if message[0] == "A"]
        for message in (message for message in got if message[0] == "A"):
            if next((late for late in self.late if channel(late) == channel(message)), None) == message:
                self.late.remove(message)
            elif self.since_unlisten >= self.WHILE:
                return False
        return True

    def lost(self):
        """What the client was not told before it left; within a transaction it is told nothing."""
        late, self.late = self.late, []
        return late if self.idle else []


class Reports:
    """Compares what is reported of parameters: the same, in the same group.

    Documented (`REPORTED_TWICE`): what a client
    set at login may be reported with the server's value first and with its own right behind, in a pipeline after its last answer.
    What counts at login is the last report of each.
    """

    def __init__(self, started):
        self.started = {REPORTED.get(name.lower()) for name in started} - {None}
        self.wanted, self.got = {}, {}
        self.late = {}

    WHILE = 8
    """How many groups of a pipeline may end after the transaction before the client's own value is reported."""

    def excuse(self, wanted, got):
        """Notes what a group reports; whether that is right."""
        theirs, ours = ([value(body) for tag, body in group if tag == "S" and value(body)[0] not in UNFOLLOWED] for group in (wanted, got))
        if wanted and wanted[0][0] == "connect":
            self.late.clear()
            theirs, ours = sorted(dict(theirs).items()), sorted(dict(ours).items())
        self.wanted.update(theirs)
        self.got.update(ours)
        differs = {name for name in self.wanted | self.got if self.wanted.get(name) != self.got.get(name)}
        of = lambda reports, name: [shown for other, shown in reports if other == name]  # noqa: E731
        said_twice = {name for name, _ in theirs + ours if of(theirs, name) != of(ours, name)}
        if not (differs | said_twice) <= self.started | self.late.keys():
            return False
        # The next value that it is told is its own. After that another reset may follow.
        told = {name for name in self.late if of(ours, name)}
        if any(self.wanted.get(name) not in of(ours, name) for name in told):
            return False
        over = got[-1:] == [("Z", b"I")]
        self.late = {name: (0 if name in told else self.late.get(name, 0)) + over for name in differs}
        return all(groups <= self.WHILE for groups in self.late.values())


REPORTED = {name.lower(): name for name in ("TimeZone", "DateStyle", "IntervalStyle", "application_name", "client_encoding", "search_path")} | {
    "options": None
}
"""The parameters that PostgreSQL reports and that a startup packet here sets."""


def _asked_for(group):
    """Without what comes unasked, and without the notices of a Parse (`NOTICE_MISSING`)."""
    asked = [m for m in group if m[0] not in "SA" and not (m[0] == "N" and dict(m[1])["C"] == "42622")]
    # PostgreSQL may refuse the text that it has just warned of.
    followed = zip(asked, [*asked[1:], ("", None)], strict=False)
    return [m for m, after in followed if not (after[0] == "E" and m[0] == "N" and dict(m[1])["C"] == "22P06")]


def shown(message):
    """A message in words."""
    tag, body = message
    if tag in ("connect", "closed", "hangs"):
        return tag
    if tag in "EN":
        kept = dict(body)
        return f"{tag}({kept.get('S')} {kept.get('C')}: {kept.get('M')}" + "".join(f"; {k}={kept[k]}" for k in "DHPWR" if k in kept) + ")"
    if tag == "T" and isinstance(body, tuple):
        return "T(" + ", ".join(f"{name[:-1].decode(errors='replace')}" + (f" of {oid}" if oid else "") for name, oid, _ in body) + ")"
    if tag == "D":
        return f"D({', '.join(map(str, _row(body)))})"
    if tag == "S":
        return "S({}={})".format(*value(body))
    return f"{tag}({re.sub(r'[^ -~]', '.', body.rstrip(bytes(1)).decode('latin-1'))})" if body else tag


def _row(body):
    values, at = [], 2
    for _ in range(struct.unpack_from("!h", body)[0]):
        (length,) = struct.unpack_from("!i", body, at)
        at += 4
        values.append("NULL" if length < 0 else repr(body[at : at + length].decode(errors="replace")))
        at += max(length, 0)
    return values
