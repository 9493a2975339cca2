#!/usr/bin/env python3
"""Draws the diagrams of the documentation: `draw.py` writes the SVG files beside it, `draw.py --check` says whether they are fresh.

Colours follow the reader's choice of a light or a dark theme. Each diagram has a background, so that it can be read on any page.
"""

import sys
from html import escape
from pathlib import Path

STYLE = """
  text { font: 13px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328 }
  .small { font-size: 12px; fill: #59636e }
  .head { font-weight: 600 }
  .on { fill: #ffffff }
  .page { fill: #ffffff; stroke: #d1d9e0 }
  .line { stroke: #818b98; stroke-width: 1; fill: none }
  .dash { stroke: #818b98; stroke-width: 1; stroke-dasharray: 4 4 }
  .a { fill: #0969da } .b { fill: #1a7f37 } .c { fill: #8250df } .bad { fill: #cf222e }
  .wait { fill: #fff8c5; stroke: #9a6700 }
  .quiet { fill: #d1d9e0 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .small { fill: #9198a1 } .on { fill: #ffffff }
    .page { fill: #0d1117; stroke: #3d444d }
    .line, .dash { stroke: #9198a1 }
    .a { fill: #1f6feb } .b { fill: #238636 } .c { fill: #8957e5 } .bad { fill: #da3633 }
    .wait { fill: #3b2e00; stroke: #d29922 }
    .quiet { fill: #3d444d }
  }
"""


class Drawing:
    """An SVG file: shapes are added in the order in which they are painted."""

    def __init__(self, width, height, title):
        self.width, self.height, self.title = width, height, title
        self.shapes = [f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>']

    def text(self, x, y, words, look="", anchor="start"):
        self.shapes.append(f'<text x="{x}" y="{y}" class="{look}" text-anchor="{anchor}">{escape(words)}</text>')

    def bar(self, x, y, width, look, words="", height=26):
        """A bar with words in its middle, which are white on a colour and dark on a pale one."""
        self.shapes.append(f'<rect class="{look}" x="{x}" y="{y}" width="{width}" height="{height}" rx="4"/>')
        if words:
            self.text(x + width / 2, y + height / 2 + 4.5, words, "" if look in ("wait", "quiet") else "on", "middle")

    def line(self, x1, y1, x2, y2, look="line"):
        self.shapes.append(f'<line class="{look}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>')

    def svg(self):
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}" role="img">'
        return "\n".join([head, f"<title>{escape(self.title)}</title>", f"<style>{STYLE}</style>", *self.shapes, "</svg>", ""])


def pool_modes():
    """For how long a client has a server connection in each pool mode."""
    d = Drawing(860, 250, "When a client has a server connection, by pool mode")
    d.text(20, 30, "A client has a server connection …", "head")
    left, right = 180, 840
    d.text(20, 75, "the client")
    d.line(left, 71, right, 71)
    for x, word in ((left, "connects"), (right, "disconnects")):
        d.line(x, 60, x, 82)
        d.text(x, 54, word, "small", "start" if x == left else "end")
    transaction = [(245, 62, "BEGIN"), (332, 76, "UPDATE"), (433, 76, "COMMIT")]
    for x, width, word in [*transaction, (650, 76, "SELECT")]:
        d.bar(x, 58, width, "quiet", word)
    rows = (
        (110, "pool_mode = session", [(left, right - left, "a", "from its login until it disconnects")]),
        (156, "transaction", [(245, 264, "b", "for its transaction"), (650, 76, "b", "statement")]),
        (202, "statement", [(650, 76, "c", "statement")]),
    )
    for y, mode, bars in rows:
        d.text(20, y + 18, mode)
        d.line(left, y + 13, right, y + 13)
        for x, width, look, words in bars:
            d.bar(x, y, width, look, words)
    d.bar(245, 202, 264, "wait", "transactions are refused")
    return d


def multiplexing():
    """Three short reads of three clients on one server connection, without and with multiplexing."""
    d = Drawing(860, 290, "Short reads of three clients on one server connection, without and with multiplexing")
    left = 190
    d.text(20, 30, "multiplex_depth = 0: one client at a time", "head")
    names = (("client A", "a"), ("client B", "b"), ("client C", "c"))
    d.text(20, 65, "server connection")
    d.line(left, 60, 840, 60)
    x = left
    for name, look in names:
        d.bar(x, 47, 80, look, name)
        d.bar(x + 80, 47, 105, "wait", "network")
        x += 185
    d.text(left, 98, "The server waits while an answer goes to pgweir and the next statement comes back.", "small")
    d.line(20, 120, 840, 120, "dash")
    d.text(20, 150, "multiplexing: statements that certainly only read, and are short, are sent one after the other", "head")
    d.text(20, 185, "server connection")
    d.line(left, 180, 840, 180)
    x = left
    for name, look in names:
        d.bar(x, 167, 80, look, name)
        x += 82
    d.text(20, 232, "answers")
    d.line(left, 227, 840, 227)
    x = left + 132
    for name, look in names:
        d.bar(x, 214, 80, look, name)
        x += 82
    d.text(left, 268, "Each client gets its own answer. If the first statement takes long, the others run on another server.", "small")
    return d


def failover():
    """What nodes and clients see from the loss of a primary until the next one serves."""
    d = Drawing(860, 392, "A failover in time: the primary is lost, clients wait, the next primary answers")
    lost, promoted, serves, right = 330, 560, 620, 840
    left = 200
    for x, words, anchor in (
        (lost, "m1 is lost", "middle"),
        (promoted, "m2 is promoted", "end"),
        (serves, "clients go on", "start"),
    ):
        d.text(x if anchor == "middle" else x + (-6 if anchor == "end" else 6), 28, words, "small", anchor)
        d.line(x, 36, x, 374, "dash")
    rows = (
        ("node m1", [(left, lost, "a", "primary"), (lost, right, "quiet", "down; refused if it comes back as it is")]),
        ("node m2", [(left, promoted, "b", "standby"), (promoted, right, "a", "primary, next epoch")]),
        ("pgweir", [(left, lost, "quiet", "asks each node"), (lost, serves, "wait", "holds clients, asks every 10 ms"), (serves, right, "quiet", "asks each node")]),
        ("an idle client", [(left, right, "quiet", "notices nothing")]),
        ("a client that begins", [(lost + 45, serves, "wait", "waits"), (serves, 730, "a", "is answered")]),
        ("a client in a transaction", [(left + 20, lost, "a", "transaction"), (lost, lost + 70, "bad", "40001"), (serves, 770, "a", "runs it again")]),
        ("a client at COMMIT", [(left + 60, lost, "a", "COMMIT"), (lost, serves, "wait", "waits (commit_outcome)"), (serves, 770, "a", "learns the outcome")]),
        ("a client that reads at m3", [(left, right, "c", "reads go on")]),
    )
    y = 48
    for name, bars in rows:
        d.text(20, y + 18, name)
        d.line(left, y + 13, right, y + 13)
        for start, end, look, words in bars:
            d.bar(start + 1, y, end - start - 2, look, words)
        y += 41
    return d


DIAGRAMS = {"pool-modes": pool_modes, "multiplexing": multiplexing, "failover-timeline": failover}


def main():
    stale = []
    for name, draw in DIAGRAMS.items():
        path, text = Path(__file__).with_name(f"{name}.svg"), draw().svg()
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"stale: {', '.join(stale)}; run docs/img/draw.py")


if __name__ == "__main__":
    main()
