"""The drawings of docs/explanation: an SVG for a light page and one for a dark page each, and README's picture of memory.

    python scripts/drawings.py                # writes docs/drawings/*.svg and docs/img/memory.png
    python scripts/drawings.py halo memory    # only these

An SVG in a page cannot see whether the page is light or dark, so that there are two files, ``NAME-light.svg`` and
``NAME-dark.svg``. Their background is transparent. All drawings are 720 units wide, as wide as a page's text.
"""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH = 720
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
Point = tuple[float, float]


@dataclass(frozen=True)
class Theme:
    """Colours. ``parts`` are those of four workers; ``own`` marks what stays with a worker."""

    name: str
    text: str
    quiet: str
    line: str
    panel: str
    parts: tuple[str, str, str, str]
    own: str


LIGHT = Theme("light", "#1f2328", "#57606a", "#8c959f", "#8c959f22", ("#1d63c8", "#c2570c", "#15803d", "#8b3fc7"), "#57606a")
DARK = Theme("dark", "#e6e8eb", "#a8b1bb", "#7d8590", "#7d859026", ("#6ea8fe", "#ff9f5a", "#56d08a", "#cf9bff"), "#a8b1bb")


class Canvas:
    """An SVG under way: shapes are drawn in the order of the calls."""

    def __init__(self, theme: Theme, height: int, title: str) -> None:
        self.theme, self.height, self.title = theme, height, title
        self.shapes: list[str] = []
        self.heads: dict[str, str] = {}

    def text(
        self, x: float, y: float, words: str, *, size: int = 14, fill: str = "", anchor: str = "start", bold: bool = False
    ) -> None:
        """Lines of text; y is the first one's base line."""
        weight = ' font-weight="600"' if bold else ""
        for number, line in enumerate(words.split("\n")):
            self.shapes.append(
                f'<text x="{x:g}" y="{y + 1.3 * size * number:g}" font-size="{size}" text-anchor="{anchor}"'
                f' fill="{fill or self.theme.text}"{weight}>{escape(line)}</text>'
            )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = "none",
        stroke: str = "none",
        label: str = "",
        ink: str = "",
        dash: str = "",
        size: int = 14,
    ) -> None:
        """A rectangle with a label in its middle."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{fill}" stroke="{stroke}"'
            f' stroke-width="1.6"{dashes}/>'
        )
        if label:
            self.text(x + width / 2, y + height / 2 + 0.35 * size, label, size=size, anchor="middle", fill=ink)

    def tile(self, x: float, y: float, width: float, label: str, colour: str, *, alpha: str = "33", dash: str = "") -> None:
        """A box of a timeline, in a worker's colour."""
        self.box(x, y, width, 38, fill=tint(colour, alpha), stroke=colour, label=label, dash=dash)

    def dot(self, at: Point, radius: float, *, fill: str, stroke: str = "none", width: float = 2) -> None:
        """A circle."""
        self.shapes.append(
            f'<circle cx="{at[0]:g}" cy="{at[1]:g}" r="{radius:g}" fill="{fill}" stroke="{stroke}" stroke-width="{width:g}"/>'
        )

    def line(
        self,
        start: Point,
        end: Point,
        *,
        stroke: str = "",
        width: float = 1.6,
        dash: str = "",
        arrow: bool = False,
        gap: float = 0,
    ) -> None:
        """A line, with ``arrow`` a head at its end; ``gap`` is left free at both ends, for the dots there."""
        stroke = stroke or self.theme.line
        length = math.dist(start, end)
        along = (end[0] - start[0]) / length, (end[1] - start[1]) / length
        x1, y1 = start[0] + gap * along[0], start[1] + gap * along[1]
        x2, y2 = end[0] - gap * along[0], end[1] - gap * along[1]
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        head = f' marker-end="url(#{self._head(stroke)})"' if arrow else ""
        self.shapes.append(
            f'<line x1="{x1:.4g}" y1="{y1:.4g}" x2="{x2:.4g}" y2="{y2:.4g}" stroke="{stroke}" stroke-width="{width:g}"'
            f"{dashes}{head}/>"
        )

    def path(self, commands: str, *, stroke: str = "none", fill: str = "none", width: float = 2) -> None:
        """Any other shape."""
        self.shapes.append(f'<path d="{commands}" stroke="{stroke}" fill="{fill}" stroke-width="{width:g}"/>')

    def _head(self, stroke: str) -> str:
        name = "head" + stroke.removeprefix("#")
        self.heads[name] = (
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{stroke}"/></marker>'
        )
        return name

    def svg(self) -> str:
        """The whole file."""
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.height}"'
                f' viewBox="0 0 {WIDTH} {self.height}" font-family="{FONT}" role="img">',
                f"<title>{escape(self.title)}</title>",
                *(["<defs>", *self.heads.values(), "</defs>"] if self.heads else []),
                *self.shapes,
                "</svg>\n",
            ]
        )


def tint(colour: str, alpha: str = "33") -> str:
    """The colour, mostly transparent."""
    return colour + alpha


def draw_halo(theme: Theme) -> str:
    """A graph that is cut in four parts, with the halo of worker 0."""
    canvas = Canvas(theme, 400, "A graph cut in four parts. The halo of worker 0: nodes of others that its edges start from.")
    parts = theme.parts
    areas = (20, 20), (250, 20), (20, 210), (250, 210)
    names = "worker 0", "worker 1", "worker 2", "worker 3"
    anchors = ("start", 30, 42), ("end", 450, 42), ("start", 30, 382), ("end", 450, 382)
    for (x, y), colour, name, (anchor, at_x, at_y) in zip(areas, parts, names, anchors, strict=True):
        canvas.box(x, y, 210, 180, fill=tint(colour, "1c"))
        canvas.text(at_x, at_y, name, fill=colour, anchor=anchor, bold=True)
    own = [(70.0, 75.0), (140, 62), (195, 100), (95, 130), (160, 150), (60, 170)]
    second = [(285.0, 85.0), (350, 70), (300, 150), (375, 135), (420, 90), (430, 165)]
    third = [(85.0, 240.0), (160, 245), (60, 310), (130, 305), (195, 300), (190, 355)]
    fourth = [(285.0, 245.0), (350, 250), (300, 320), (380, 310), (430, 260), (425, 340)]
    nodes = [*own, *second, *third, *fourth]
    inside = [(0, 1), (1, 2), (0, 3), (3, 4), (2, 4), (3, 5), (6, 7), (6, 8), (7, 10), (8, 9), (9, 11), (9, 10)]
    inside += [
        (12, 13),
        (12, 14),
        (13, 16),
        (14, 15),
        (15, 16),
        (16, 17),
        (18, 19),
        (18, 20),
        (19, 21),
        (20, 21),
        (19, 22),
        (21, 23),
    ]
    elsewhere = [(11, 22), (16, 20)]
    cut = [(6, 2), (6, 4), (8, 4), (12, 5), (13, 4), (18, 4)]
    for a, b in inside:
        canvas.line(nodes[a], nodes[b], gap=11)
    for a, b in elsewhere:
        canvas.line(nodes[a], nodes[b], gap=11, dash="5 4")
    for a, b in cut:
        canvas.line(nodes[a], nodes[b], stroke=parts[0], width=2.4, gap=14, arrow=True)
    halo = {a for a, _ in cut}
    for number, node in enumerate(nodes):
        canvas.dot(node, 9, fill=parts[number // 6])
        if number in halo:
            canvas.dot(node, 13.5, fill="none", stroke=parts[0], width=2.4)
    x = 490
    canvas.dot((x + 8, 52), 9, fill=parts[0])
    canvas.text(x + 32, 48, "6 own rows:\nworker 0 holds them")
    canvas.dot((x + 8, 118), 9, fill=parts[1])
    canvas.dot((x + 8, 118), 13.5, fill="none", stroke=parts[0], width=2.4)
    canvas.text(x + 32, 106, "5 halo rows: peers'\nnodes from which edges\nlead into worker 0")
    canvas.line((x - 6, 190), (x + 22, 190), stroke=parts[0], width=2.4, arrow=True)
    canvas.text(x + 32, 186, "6 cut edges into worker 0:\na row has to travel")
    canvas.line((x - 6, 250), (x + 22, 250))
    canvas.text(x + 32, 255, "an edge inside a part")
    canvas.line((x - 6, 288), (x + 22, 288), dash="5 4")
    canvas.text(x + 32, 293, "a cut edge elsewhere")
    canvas.text(x - 6, 340, "A row that serves two edges\ntravels once.", fill=theme.quiet)
    return canvas.svg()


STEP, LEFT = 57, 176
"""Of timelines: the width of a unit of time, and where time begins."""
PIECES = [("3a", 3), ("3b", 3), ("2a", 2), ("2b", 2), ("1a", 1), ("1b", 1)]
"""Pieces of peers' rows in the order in which worker 0 gets them, with their owner."""


def _lane(canvas: Canvas, y: float, name: str, note: str) -> None:
    canvas.text(8, y + 15, name, bold=True)
    canvas.text(8, y + 33, note, size=13, fill=canvas.theme.quiet)


def _arrival(number: int) -> int:
    """When the piece begins to arrive: the first two at once, the others as soon as a buffer is free."""
    return number if number < 2 else number + 1


def draw_sar_forward(theme: Theme) -> str:
    """One layer's forward pass as a timeline."""
    canvas = Canvas(theme, 376, "Forward of one layer on worker 0: pieces of peers' rows arrive, are folded, and are dropped.")
    _lane(canvas, 24, "arriving", "rows of peers")
    _lane(canvas, 84, "folding", "messages into sums")
    _lane(canvas, 152, "buffer 1", "a piece at a time")
    _lane(canvas, 200, "buffer 2", "likewise")
    _lane(canvas, 260, "kept", "from end to end")
    for number, (name, owner) in enumerate(PIECES):
        colour, begin, fold = theme.parts[owner], _arrival(number), number + 2
        canvas.tile(LEFT + begin * STEP, 24, STEP - 4, name, colour)
        canvas.tile(LEFT + fold * STEP, 84, STEP - 4, name, colour, alpha="66")
        y = 152 if number % 2 == 0 else 200
        canvas.tile(LEFT + begin * STEP, y, (fold + 1 - begin) * STEP - 4, name, colour)
        canvas.text(LEFT + (fold + 1) * STEP - 12, y + 14, "×", size=15, anchor="middle")
    colour = theme.parts[0]
    canvas.tile(LEFT, 84, 2 * STEP - 4, "own rows", colour, alpha="66")
    canvas.box(LEFT + 8 * STEP, 84, STEP + 24, 38, stroke=theme.line, label="finish")
    canvas.tile(LEFT, 260, 9 * STEP + 24, "own rows [N, F] and the accumulator [N, F]", colour)
    _time(canvas, 324, "×  dropped: the next piece takes the buffer")
    canvas.text(8, 346, "3a: the first piece\nof worker 3's rows", size=13, fill=theme.quiet)
    return canvas.svg()


def _time(canvas: Canvas, y: float, note: str) -> None:
    canvas.line((LEFT, y), (LEFT + 9 * STEP + 20, y), arrow=True)
    canvas.text(LEFT + 9 * STEP + 22, y + 22, "time", anchor="end", fill=canvas.theme.quiet)
    canvas.text(LEFT, y + 22, note, fill=canvas.theme.quiet)


def draw_sar_backward(theme: Theme) -> str:
    """The same layer's backward pass."""
    canvas = Canvas(theme, 396, "Backward of one layer on worker 0: rows are fetched again, their gradients return.")
    _lane(canvas, 24, "arriving", "rows, once more")
    _lane(canvas, 88, "computing", "gradients of a piece")
    _lane(canvas, 152, "leaving", "to the rows' owner")
    _lane(canvas, 216, "coming back", "gradients of own rows")
    _lane(canvas, 280, "kept", "from end to end")
    for number, (name, owner) in enumerate(PIECES):
        colour, begin, now = theme.parts[owner], _arrival(number), number + 2
        canvas.tile(LEFT + begin * STEP, 24, STEP - 4, name, colour, dash="5 3")
        canvas.tile(LEFT + now * STEP, 88, STEP - 4, "∇ " + name, colour, alpha="66")
        canvas.tile(LEFT + (now + 1) * STEP, 152, STEP - 4, f"→ {owner}", colour)
    for number, owner in enumerate((1, 1, 2, 2, 3, 3)):
        canvas.tile(LEFT + (number + 3) * STEP, 216, STEP - 4, f"{owner} →", theme.parts[owner])
    colour = theme.parts[0]
    canvas.tile(LEFT, 88, 2 * STEP - 4, "∇ own rows", colour, alpha="66")
    canvas.tile(LEFT, 280, 9 * STEP + 24, "own rows, output, softmax statistics, gradients of own rows", colour)
    note = "Dashed: only where gradients depend on the rows, as in attention.\nSums and means fetch nothing again."
    _time(canvas, 342, note)
    return canvas.svg()


def draw_partial_results(theme: Theme) -> str:
    """Three ways to serve the edges of one cut."""
    canvas = Canvas(theme, 330, "One cut: with rows alone four travel, with partial results alone four, with both two.")
    edges = [("a", "1"), ("b", "1"), ("c", "1"), ("d", "2"), ("d", "3"), ("d", "4")]
    panels = [
        ("only rows: 4 travel", "post", "abcd", ""),
        ("only partial results: 4", "pre", "", "1234"),
        ("the fewest bytes: 2", "least", "d", "1"),
    ]
    q, p = theme.parts[1], theme.parts[0]
    for number, (title, value, rows, results) in enumerate(panels):
        left = 10 + 240 * number
        canvas.box(left, 8, 220, 284, fill=theme.panel)
        canvas.text(left + 110, 32, title, anchor="middle", bold=True)
        canvas.line((left + 110, 50), (left + 110, 272), dash="6 5")
        canvas.text(left + 28, 68, "q", anchor="middle", fill=q, bold=True)
        canvas.text(left + 192, 68, "p", anchor="middle", fill=p, bold=True)
        sources = {name: (left + 28.0, 92.0 + 50 * k) for k, name in enumerate("abcd")}
        ends = {name: (left + 192.0, 92.0 + 50 * k) for k, name in enumerate("1234")}
        middle = left + 110.0
        for name in rows:
            at = middle, sources[name][1]
            canvas.line(sources[name], at, stroke=q, width=2.4, gap=13)
            for source, end in edges:
                if source == name and end not in results:
                    canvas.line(at, ends[end], gap=14, arrow=True)
        for name in results:
            at = middle, ends[name][1]
            for source, end in edges:
                if end == name and source not in rows:
                    canvas.line(sources[source], at, gap=13, arrow=True)
            canvas.line(at, ends[name], stroke=p, width=2.4, gap=14, arrow=True)
        for name in rows:
            canvas.box(middle - 12, sources[name][1] - 12, 24, 24, fill=q, label=name, ink=_paper(theme))
        for name in results:
            canvas.box(middle - 12, ends[name][1] - 12, 24, 24, fill=p, label="Σ", ink=_paper(theme))
        for name, at in sources.items():
            canvas.dot(at, 12, fill=tint(q, "40"), stroke=q)
            canvas.text(at[0], at[1] + 5, name, anchor="middle")
        for name, at in ends.items():
            canvas.dot(at, 12, fill=tint(p, "40"), stroke=p)
            canvas.text(at[0], at[1] + 5, name, anchor="middle")
        canvas.text(left + 110, 316, f"comm.aggregate={value}", size=13, anchor="middle", fill=theme.quiet)
    return canvas.svg()


def _paper(theme: Theme) -> str:
    """For text on a full colour."""
    return "#ffffff" if theme is LIGHT else "#131416"


def draw_micro_batches(theme: Theme) -> str:
    """A step in two micro-batches: what each reaches, and what is held when."""
    canvas = Canvas(theme, 372, "A step in two micro-batches: each computes what its targets reach; memory peaks are lower.")
    first, second = theme.parts[1], theme.parts[0]
    columns = 55.0, 175.0, 295.0
    names = "rows read", "hidden rows", "targets"
    for x, name in zip(columns, names, strict=True):
        canvas.text(x, 28, name, anchor="middle", bold=True)
    rows = [[(columns[0], 58.0 + 36 * k) for k in range(8)], [(columns[1], 66.0 + 47 * k) for k in range(6)]]
    rows.append([(columns[2], 84.0 + 66.0 * k) for k in range(4)])
    groups = [{0, 1, 2, 3, 4}, {3, 4, 5, 6, 7}], [{0, 1, 2, 3}, {2, 3, 4, 5}], [{0, 1}, {2, 3}]
    links = (
        [(0, 0), (1, 0), (1, 1), (2, 1), (4, 2), (3, 2), (4, 3), (3, 3), (5, 4), (6, 4), (6, 5), (7, 5)],
        [(0, 0), (1, 0), (1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (4, 2), (4, 3), (5, 3)],
    )
    for layer, edges in enumerate(links):
        for a, b in edges:
            canvas.line(rows[layer][a], rows[layer + 1][b], gap=12, arrow=True, width=1.3)
    for layer, points in enumerate(rows):
        for number, (x, y) in enumerate(points):
            in_first, in_second = number in groups[layer][0], number in groups[layer][1]
            canvas.dot((x, y), 10, fill=first if in_first else second)
            if in_first and in_second:
                canvas.path(f"M{x:g} {y - 10:g}a10 10 0 0 1 0 20z", fill=second)
    canvas.dot((columns[0], 351), 8, fill=first)
    canvas.path(f"M{columns[0]:g} 343a8 8 0 0 1 0 16z", fill=second)
    canvas.text(columns[0] + 16, 356, "reached by both: computed twice", fill=theme.quiet)
    x, base, high = 390.0, 160.0, 92.0
    canvas.text(x - 10, 28, "memory of a worker", bold=True)
    canvas.text(x + 300, 58, "one batch", anchor="end", fill=theme.quiet)
    _hump(canvas, x, base, 150, high, theme.own, "")
    canvas.box(x + 156, base - 20, 20, 20, fill=theme.text)
    canvas.line((x - 10, base), (x + 310, base), arrow=True)
    base = 300.0
    canvas.text(x + 300, 200, "two micro-batches", anchor="end", fill=theme.quiet)
    _hump(canvas, x, base, 100, 54, first, "1")
    _hump(canvas, x + 106, base, 100, 54, second, "2")
    canvas.box(x + 212, base - 20, 20, 20, fill=theme.text)
    canvas.line((x - 10, base), (x + 310, base), arrow=True)
    canvas.line((x - 10, 300 - 54), (x + 300, 300 - 54), dash="3 4")
    canvas.line((x - 10, 160 - high), (x + 170, 160 - high), dash="3 4")
    canvas.text(x + 310, base + 20, "time", anchor="end", fill=theme.quiet)
    canvas.box(x - 8, 340, 14, 14, fill=theme.text)
    canvas.text(x + 14, 352, "gradients are summed, one optimizer step", fill=theme.quiet)
    return canvas.svg()


def _hump(canvas: Canvas, x: float, base: float, width: float, height: float, colour: str, label: str) -> None:
    """What forward and backward hold: it grows to a peak and goes."""
    top = f"{x + width / 2:g} {base - height:g}"
    canvas.path(f"M{x:g} {base:g}L{top}L{x + width:g} {base:g}z", stroke=colour, fill=tint(colour, "4d"))
    if label:
        canvas.text(x + width / 2, base - 10, label, anchor="middle", bold=True)


def draw_servers(theme: Theme) -> str:
    """Two servers of two workers: rows over the slow link, or copies on each server."""
    canvas = Canvas(theme, 388, "Two servers: rows travel between them, or each holds copies and only gradients travel.")
    titles = "servers=2", "servers=2 preload=shared"
    for number, title in enumerate(titles):
        left = 10.0 + 365 * number
        canvas.text(left + 168, 26, title, anchor="middle", bold=True)
        for server in range(2):
            y = 44.0 + 184 * server
            colour = theme.parts[server]
            canvas.box(left, y, 335, 100, stroke=theme.line, fill=theme.panel)
            canvas.text(left + 10, y + 20, f"server {server}", size=13, fill=theme.quiet)
            for worker in range(2):
                x = left + 14 + 197 * worker
                canvas.box(x, y + 30, 110, 58, fill=tint(colour), stroke=colour)
                canvas.text(x + 55, y + 49, f"worker {2 * server + worker}", size=13, anchor="middle")
                if number == 0:
                    canvas.text(x + 55, y + 72, "own rows", size=13, anchor="middle")
                else:
                    other = theme.parts[1 - server]
                    canvas.box(x + 6, y + 57, 46, 24, fill=tint(colour, "80"), label="own", size=13)
                    canvas.box(x + 56, y + 57, 50, 24, fill=tint(other, "66"), stroke=other, dash="4 3")
                    canvas.text(x + 81, y + 73.5, "copies", size=13, anchor="middle")
            _double(canvas, (left + 128, y + 59), (left + 207, y + 59), colour, 2)
            canvas.text(left + 168, y + 49, "rows", size=13, anchor="middle")
        middle = left + 90
        if number == 0:
            for x in (middle - 24, middle, middle + 24):
                _double(canvas, (x, 148), (x, 224), theme.parts[3], 3)
            canvas.text(middle + 44, 174, "rows and their\ngradients, each layer", size=13)
            canvas.text(middle + 44, 214, "slow network", size=13, fill=theme.quiet)
        else:
            _double(canvas, (middle, 148), (middle, 224), theme.parts[3], 1.6)
            canvas.text(middle + 20, 174, "gradients of parameters,\nstatistics of batch norm", size=13)
            canvas.text(middle + 20, 214, "slow network", size=13, fill=theme.quiet)
    canvas.text(178, 356, "least memory; every layer waits\nfor the network", anchor="middle", fill=theme.quiet)
    canvas.text(543, 356, "more memory and work;\nlittle crosses the network", anchor="middle", fill=theme.quiet)
    return canvas.svg()


def _double(canvas: Canvas, start: Point, end: Point, stroke: str, width: float) -> None:
    """A line with a head at both ends."""
    middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    canvas.line(middle, start, stroke=stroke, width=width, arrow=True)
    canvas.line(middle, end, stroke=stroke, width=width, arrow=True)


WORKERS = 1, 2, 4, 8
ONE_PROCESS_MB = {"PyG": 2112, "DGL": 1557}
MEMORY_MB = {"the usual way\n(domain_parallel)": (1529, 1053, 675, 465), "sargnn\n(mode=sar)": (904, 470, 249, 132)}
"""A worker's peak: GraphSage 3 x 256, products_like 0.08; the results' first table, 2026-11-28."""


def draw_memory(theme: Theme, png: Path | None = None) -> str:
    """A worker's memory against the number of workers; ``png`` gets the same on white. Returns the SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": "sargnn",
        "font.family": "sans-serif",
        "font.size": 11,
        "text.color": theme.text,
        "axes.edgecolor": theme.line,
        "axes.labelcolor": theme.text,
        "xtick.color": theme.text,
        "ytick.color": theme.text,
    }
    with matplotlib.rc_context(settings):
        figure, axes = pyplot.subplots(figsize=(10, 5.4))
        places = range(len(WORKERS))
        last = places[-1]
        for name, value in ONE_PROCESS_MB.items():
            axes.axhline(value, color=theme.quiet, linestyle=(0, (6, 4)), linewidth=2)
            axes.text(last + 0.12, value + 28, f"{name} in one process: {value} MB", ha="right", va="bottom", fontsize=13)
        for (name, values), colour, marker in zip(MEMORY_MB.items(), (theme.parts[1], theme.parts[0]), "so", strict=True):
            axes.plot(places, values, color=colour, marker=marker, linewidth=2.6, markersize=8)
            for place, value in zip(places, values, strict=True):
                shift, align = ((0, -21), "center") if name.startswith("sargnn") else ((8, 7), "left")
                if place == 0:
                    shift, align = ((12, -2), "left") if name.startswith("sargnn") else ((0, -24), "center")
                elif place == last:
                    shift, align = (0, 10), "center"
                axes.annotate(
                    str(value), (place, value), xytext=shift, textcoords="offset points", ha=align, fontsize=13, color=colour
                )
            axes.text(last + 0.14, values[-1], name, va="center", fontsize=13.5, color=colour, fontweight="bold")
        axes.set_xticks(list(places), [str(count) for count in WORKERS], fontsize=13)
        axes.set_xlim(-0.2, last + 1.02)
        axes.set_ylim(0, 2400)
        axes.tick_params(axis="y", labelsize=13)
        axes.set_xlabel("workers", fontsize=14)
        axes.set_ylabel("peak training memory of a worker, MB", fontsize=14)
        axes.grid(axis="y", color=theme.line, alpha=0.25)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        figure.tight_layout()
        if png is not None:
            figure.savefig(png, dpi=140, facecolor="white", metadata={"Software": None})
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    svg = re.sub(r"font-family: [^;]*;", f"font-family: {FONT};", text.getvalue())
    return svg.replace('width="720pt" height="388.8pt"', 'width="720" height="388.8"')


DRAWINGS: dict[str, Callable[[Theme], str]] = {
    "halo": draw_halo,
    "sar-forward": draw_sar_forward,
    "sar-backward": draw_sar_backward,
    "partial-results": draw_partial_results,
    "memory": draw_memory,
    "micro-batches": draw_micro_batches,
    "servers": draw_servers,
}


def main() -> None:
    """Write the drawings that the command line names, or all."""
    names = sys.argv[1:] or list(DRAWINGS)
    folder = DOCS / "drawings"
    folder.mkdir(exist_ok=True)
    for name in names:
        for theme in (LIGHT, DARK):
            (folder / f"{name}-{theme.name}.svg").write_text(DRAWINGS[name](theme), encoding="utf-8")
    if "memory" in names:
        draw_memory(LIGHT, DOCS / "img" / "memory.png")


if __name__ == "__main__":
    main()
