#!/usr/bin/env python3
"""Draws a captured screen of a terminal as an SVG file: `terminal.py CAPTURE.json PICTURE.svg TITLE`.

A capture is {"columns": 80, "rows": [[[text, colour, bold, reverse, underlined], ...], ...]}, as tests/harness/terminal.py makes it. Colours
follow the reader's choice of a light or a dark theme, as those of draw.py do.
"""

import json
import sys
from html import escape
from pathlib import Path

CELL_WIDTH, CELL_HEIGHT, MARGIN = 8.4, 18, 14

STYLE = """
  text { font: 14px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; white-space: pre; fill: #1f2328 }
  .page { fill: #ffffff; stroke: #d1d9e0 }
  .bold { font-weight: 700 }
  .under { text-decoration: underline }
  .red { fill: #cf222e } .green { fill: #1a7f37 } .brown { fill: #9a6700 } .brightblack { fill: #59636e }
  rect.plain { fill: #1f2328 }
  text.on { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .page { fill: #0d1117; stroke: #3d444d }
    .red { fill: #ff7b72 } .green { fill: #3fb950 } .brown { fill: #d29922 } .brightblack { fill: #9198a1 }
    rect.plain { fill: #f0f6fc }
    text.on { fill: #0d1117 }
  }
"""


def runs(row):
    """(place, cells, colour, bold, reverse, underlined) of each run of a row that is not blank."""
    x = 0
    for text, colour, bold, reverse, underlined in row:
        if text.strip() or reverse:
            yield x, text, colour, bold, reverse, underlined
        x += len(text)


def shapes(x, y, text, colour, bold, reverse, underlined):
    """The elements of a run."""
    left, top, width = MARGIN + x * CELL_WIDTH, MARGIN + y * CELL_HEIGHT, len(text) * CELL_WIDTH
    colour = "" if colour == "default" else colour
    looks = [colour] if colour and not reverse else []
    looks += ["bold"] if bold else []
    looks += ["under"] if underlined else []
    looks += ["on"] if reverse else []
    if reverse:
        yield f'<rect class="{colour or "plain"}" x="{left:.1f}" y="{top}" width="{width:.1f}" height="{CELL_HEIGHT}"/>'
    if text.strip():
        # The length holds the cells in their columns, whatever font the reader has.
        begin, words = len(text) - len(text.lstrip()), text.strip()
        look = f' class="{" ".join(looks)}"' if looks else ""
        at = f'x="{left + begin * CELL_WIDTH:.1f}" y="{top + 13.5}" textLength="{len(words) * CELL_WIDTH:.1f}"'
        yield f'<text{look} {at} lengthAdjust="spacingAndGlyphs">{escape(words)}</text>'


def svg(capture, title):
    """The picture of a capture."""
    rows = capture["rows"]
    while rows and not any(text.strip() for text, *_ in rows[-1]):
        rows = rows[:-1]
    width = round(capture["columns"] * CELL_WIDTH + 2 * MARGIN)
    height = len(rows) * CELL_HEIGHT + 2 * MARGIN
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">']
    lines += [f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>"]
    lines += [f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>']
    for y, row in enumerate(rows):
        for run in runs(row):
            lines += shapes(run[0], y, *run[1:])
    return "\n".join([*lines, "</svg>", ""])


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    capture, picture, title = sys.argv[1:]
    Path(picture).write_text(svg(json.loads(Path(capture).read_text()), title))


if __name__ == "__main__":
    main()
