"""Makes a failing round smaller as long as it still fails in the same way."""

from dataclasses import replace

from sessions.rounds import Turn


class Shrinker:
    """Tries smaller rounds; `fails(round)` plays one and says whether it still fails in the same way."""

    def __init__(self, fails, tries=400):
        self.fails = fails
        self.left = tries

    def shrunk(self, played):
        """The smallest round found within the number of tries."""
        before = None
        while before != played and self.left > 0:
            before = played
            for step in (self._settings, self._clients, self._turns, self._messages, self._texts, self._details):
                played = step(played)
        return played

    def _first(self, played, attempts):
        """The first attempt that fails, or None."""
        for attempt in attempts:
            if self.left <= 0:
                return None
            if attempt != played and attempt.turns:
                self.left -= 1
                if self.fails(attempt):
                    return attempt
        return None

    def _repeat(self, played, attempts_of):
        while found := self._first(played, attempts_of(played)):
            played = found
        return played

    def _settings(self, played):
        """Half of the settings, then one less: the pooler is started again for each attempt."""
        names = sorted(played.settings)
        halves = [names[len(names) // 2 :], names[: len(names) // 2]] if len(names) > 1 else []
        fewer = [*halves, *([other for other in names if other != name] for name in names)]
        attempts = (replace(played, settings={name: played.settings[name] for name in kept}) for kept in fewer)
        smaller = self._first(played, attempts)
        return self._settings(smaller) if smaller else played

    def _clients(self, played):
        return self._repeat(played, lambda r: (r.with_turns(t for t in r.turns if t.client != client) for client in r.startups))

    def _turns(self, played):
        size = max(1, len(played.turns) // 2)
        while size:
            at = len(played.turns)
            while at > 0:
                start = max(0, at - size)
                smaller = self._first(played, [played.with_turns(played.turns[:start] + played.turns[at:])])
                played = smaller or played
                at = start
            size //= 2
        return played

    def _messages(self, played):
        return self._each_turn(played, _with_fewer_messages)

    def _texts(self, played):
        return self._each_turn(played, _with_shorter_texts)

    def _details(self, played):
        played = self._each_turn(played, _plainer)
        for client, startup in list(played.startups.items()):
            for name in list(startup):
                fewer = {k: v for k, v in played.startups[client].items() if k != name}
                played = self._first(played, [replace(played, startups={**played.startups, client: fewer})]) or played
        return self._first(played, (replace(played, servers=n) for n in range(1, played.servers))) or played

    def _each_turn(self, played, smaller_of):
        """Replaces each turn by the first of its smaller forms that still fails, again and again."""
        for at in reversed(range(len(played.turns))):
            attempts = lambda r: (r.with_turns((*r.turns[:at], turn, *r.turns[at + 1 :])) for turn in smaller_of(r.turns[at]))  # noqa: B023, E731
            played = self._repeat(played, attempts)
        return played


def _with_fewer_messages(turn):
    """The turn without one of its messages; a COPY's data goes with what begins it."""
    if turn.connection or len(turn.messages) < 2:
        return
    for at, said in enumerate(turn.messages):
        if said[0] == "copy":
            continue
        behind = at + 1
        while behind < len(turn.messages) and turn.messages[behind][0] == "copy":
            behind += 1
        yield replace(turn, messages=turn.messages[:at] + turn.messages[behind:])


def _with_shorter_texts(turn):
    """The turn with a statement less in one of its strings."""
    for at, said in enumerate(turn.messages):
        where = {"Q": 1, "P": 2}.get(said[0])
        if where is None:
            continue
        parts = said[where].split(";")
        for number in range(len(parts)) if len(parts) > 1 else ():
            text = ";".join(parts[:number] + parts[number + 1 :]).strip()
            yield replace(turn, messages=(*turn.messages[:at], (*said[:where], text, *said[where + 1 :]), *turn.messages[at + 1 :]))
        if len(parts) > 8:
            yield replace(turn, messages=(*turn.messages[:at], (*said[:where], ";".join(parts[: len(parts) // 2])), *turn.messages[at + 1 :]))


def _plainer(turn):
    """The turn in one write, with its answer awaited, with fewer startup parameters."""
    if turn.cuts:
        yield replace(turn, cuts=())
    if not turn.waits:
        yield replace(turn, waits=True)
    if turn.connection == "connect" and len(turn.messages[0]) > 1 and turn.messages[0][1]:
        for name in turn.messages[0][1]:
            yield Turn(turn.client, (("connect", {k: v for k, v in turn.messages[0][1].items() if k != name}),))
