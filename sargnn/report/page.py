"""One page with everything about the runs that are compared, style and script included: it reads no network, no other file."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from sargnn.report.charts import Picture
from sargnn.report.draw import as_svg
from sargnn.report.groups import BY_KEY, FIGURES, Figure, Group, Value, best_scores, figures_of, loss_notes, parts_of
from sargnn.report.runs import LeftOut, Run, Settings, differences, show_settings, show_value
from sargnn.tracking.memory import PARTS, human_bytes
from sargnn.tracking.scores import show_score

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
Cell = tuple[str, str | float | None]
"""What is shown, as HTML, and what it is sorted by."""


def write_page(
    path: Path,
    runs: Sequence[Run],
    groups: Sequence[Group],
    pictures: Sequence[Picture],
    commands: Mapping[str, str | None],
    left_out: Sequence[LeftOut],
) -> None:
    """Readers see the page whole or not at all. ``commands``: of a run's name, what repeats it. Raises ``OSError``."""
    datasets = ", ".join(dict.fromkeys(run.dataset for run in runs))
    title = escape(f"{len(runs)} run{'s' * (len(runs) != 1)} on {datasets}")
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>{title}</title><style>{STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
    ]
    for skipped in left_out:
        lines.append(f'<p class="note">left out: {escape(str(skipped.folder))} ({escape(skipped.reason)})</p>')
    lines += _runs(runs)
    lines += (f'<p class="note">{escape(note)}</p>' for note in loss_notes(runs))
    if any(len(group.members) > 1 for group in groups):
        lines += _groups(groups)
    lines += ["<h2>Pictures</h2>", '<div class="pictures">']
    for picture in pictures:
        data = base64.b64encode(as_svg(picture).encode()).decode()
        text = escape(picture.title)
        broad = ' class="broad"' if len(picture.charts) > 1 else ""
        lines.append(f'<figure{broad}><figcaption>{text}</figcaption><div class="wide"><img alt="{text}"')
        lines.append(f' src="data:image/svg+xml;base64,{data}"></div></figure>')
    lines.append("</div>")
    lines += _memory(runs)
    lines.append("<h2>Commands that repeat the runs</h2>")
    for run in runs:
        command = commands.get(run.name)
        code = f"<code>{escape(command)}</code>" if command else "an option of it is not in this configuration folder"
        lines.append(f'<div class="command"><span>{escape(run.name)}</span>{code}</div>')
    lines.append(f"<script>{SCRIPT}</script></body></html>")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    temporary.replace(path)


def _runs(runs: Sequence[Run]) -> Iterator[str]:
    differing = differences(runs)
    keys = [key for key in dict.fromkeys(key for settings in differing for key in settings) if key != "dataset"]
    several = len({run.dataset for run in runs}) > 1
    figures = _with_values(runs)
    best = {figure.key: best_scores(runs, figure) for figure in figures if figure.key.startswith("test_")}
    rows = []
    for number, (run, differs) in enumerate(zip(runs, differing, strict=True)):
        values = figures_of(run)
        row: list[Cell] = [(escape(run.name), run.name)]
        row += [(escape(run.dataset), run.dataset)] if several else []
        for figure in figures:
            text = _show(figure, values[figure.key], run.metric)
            if figure.key in best and best[figure.key][number]:
                text = f'<strong title="the best of its dataset and metric">{text}*</strong>'
            row.append((text, values[figure.key]))
        rows.append(row + [_setting(differs, key) for key in keys])
    heads = ["run", *(["dataset"] if several else [])]
    heads += [_title(figure, {run.metric for run in runs}) for figure in figures]
    where = "of the runs on its dataset" if len({run.judged_on[0] for run in runs}) > 1 else "of all"
    marked = f" * marks the best test metric {where}." if any(any(flags) for flags in best.values()) else ""
    yield "<h2>Runs</h2>"
    yield f"<p>What is alike in all runs has no column.{marked} Memory is that of the worker that has most.</p>"
    yield from _table([*heads, *map(_head, keys)], rows, words=(range(1 + several), range(len(heads), len(heads) + len(keys))))


def _groups(groups: Sequence[Group]) -> Iterator[str]:
    keys = list(dict.fromkeys(key for group in groups for key in group.differs))
    figures = _with_values([run for group in groups for run in group.members])
    rows = []
    for group in groups:
        row: list[Cell] = [(escape(group.name), group.name), (str(len(group.members)), float(len(group.members)))]
        for figure in figures:
            spread = group.figures[figure.key]
            text = "-" if spread is None else _show(figure, spread.mean, group.first.metric)
            if spread is not None and spread.n > 1:
                text += f" ± {_show(figure, spread.std, group.first.metric)}"
            row.append((text, None if spread is None else spread.mean))
        rows.append(row + [_setting(group.differs, key) for key in keys])
    heads = ["runs", "seeds"]
    heads += [_title(figure, {group.first.metric for group in groups}) for figure in figures]
    yield "<h2>Means over seeds</h2><p>Runs of a row differ in the seed alone; behind ± the standard deviation.</p>"
    yield from _table([*heads, *map(_head, keys)], rows, words=(range(1), range(len(heads), len(heads) + len(keys))))


def _memory(runs: Sequence[Run]) -> Iterator[str]:
    every = [(run, rank, parts) for run in runs for rank, parts in enumerate(parts_of(run.result))]
    names = [name for name in PARTS if any(name in parts for *_, parts in every)]
    rows = []
    for run, rank, parts in every:
        row: list[Cell] = [(escape(run.name), run.name), (str(rank), float(rank))]
        row += [(human_bytes(parts[name]), float(parts[name])) if name in parts else ("-", None) for name in names]
        total = sum(parts.values())
        rows.append([*row, (human_bytes(total), float(total))])
    if rows:
        yield "<h2>Memory of each worker</h2>"
        yield "<p>The parts of its largest resident set: libraries (base), what it has loaded, what training takes, and what"
        yield "loading or evaluating takes beyond that (other).</p>"
        yield from _table(["run", "rank", *names, "resident"], rows, words=(range(1),))


def _table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], *, words: Sequence[range]) -> Iterator[str]:
    """``words``: the columns that hold words, not figures."""
    yield '<div class="wide"><table><thead><tr>'
    for number, head in enumerate(heads):
        kind = ' class="word"' if any(number in columns for columns in words) else ""
        yield f'<th scope="col"{kind}><button type="button">{escape(head)}</button></th>'
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = []
        for number, (text, value) in enumerate(row):
            kind = ' class="word"' if any(number in columns for columns in words) else ""
            by = "" if value is None else f' data-value="{escape(str(value))}"'
            cells.append(f"<td{kind}{by}>{text}</td>")
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def _setting(differs: Settings, key: str) -> Cell:
    if key not in differs:
        return "", None
    value = differs[key]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return escape(show_value(value)), float(value) if number else show_value(value)


def _head(key: str) -> str:
    return show_settings({key: ""})[0].rstrip(" =")


def _with_values(runs: Sequence[Run]) -> list[Figure]:
    every = [figures_of(run) for run in runs]
    return [figure for figure in FIGURES if any(figures[figure.key] is not None for figures in every)]


def _title(figure: Figure, metrics: set[str]) -> str:
    if figure is BY_KEY["test_score"]:
        return f"test {next(iter(metrics))}" if len(metrics) == 1 else "test metric"
    return {"s": f"{figure.head}, s", "bytes": f"{figure.head}"}.get(figure.unit, figure.head)


def _show(figure: Figure, value: Value, metric: str) -> str:
    if value is None:
        return "-"
    if figure.key == "test_score":
        return show_score(value, metric)
    return {"s": f"{value:.3f}", "bytes": human_bytes(value)}.get(figure.unit, f"{value:.4f}")


STYLE = """
:root { color-scheme: light dark; --line: #d4d4d4; --soft: #f4f4f4; --text: #1a1a1a; --back: #ffffff; --mark: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --line: #444; --soft: #242424; --text: #e6e6e6; --back: #161616; --mark: #56b4e9; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1500px; padding: 1rem; color: var(--text); background: var(--back);
  font: 15px/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.note { color: #b35900; margin: .2rem 0; }
.wide { overflow-x: auto; max-width: 100%; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line);
  overflow-wrap: normal; }
th { background: var(--soft); vertical-align: bottom; }
td:first-child { position: sticky; left: 0; background: var(--back); white-space: normal; overflow-wrap: anywhere;
  min-width: 6.5rem; max-width: 22rem; }
.word, .word button { text-align: left; }
tbody tr:hover { background: var(--soft); }
th button { all: unset; cursor: pointer; width: 100%; text-align: inherit; }
th button:focus-visible { outline: 2px solid var(--mark); }
th[aria-sort] { color: var(--mark); }
th[aria-sort=ascending] button::after { content: " \\2191"; } th[aria-sort=descending] button::after { content: " \\2193"; }
.pictures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 560px), 1fr)); }
figure { margin: 0; min-width: 0; } figcaption { font-weight: 600; margin-bottom: .3rem; }
figure.broad { grid-column: 1 / -1; }
figure .wide { background: #ffffff; } img { display: block; min-width: 540px; max-width: 100%; height: auto; }
.broad img { min-width: 1000px; }
.command { margin: .5rem 0; } .command span { display: block; font-weight: 600; }
code { display: block; padding: .4rem .6rem; background: var(--soft); border-radius: 4px; font-size: .82rem; user-select: all; }
"""

SCRIPT = """
for (const head of document.querySelectorAll("th button")) head.addEventListener("click", () => {
  const cell = head.parentElement, rows = cell.closest("table").tBodies[0];
  const up = cell.getAttribute("aria-sort") !== "ascending", at = cell.cellIndex;
  const key = row => row.cells[at].dataset.value;
  const order = (a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
    const both = x !== "" && y !== "" && !isNaN(x) && !isNaN(y);
    return (up ? 1 : -1) * (both ? x - y : x.localeCompare(y, undefined, {numeric: true}));
  };
  for (const other of cell.parentElement.cells) other.removeAttribute("aria-sort");
  cell.setAttribute("aria-sort", up ? "ascending" : "descending");
  rows.append(...[...rows.rows].sort(order));
});
"""
