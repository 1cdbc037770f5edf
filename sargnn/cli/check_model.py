"""``sargnn check model=...``: whether a model computes the same on one worker and on two, and where it does not."""

from __future__ import annotations

import json
import linecache
import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sargnn.config.run import RunConfig
    from sargnn.launch.compare_worlds import Graph
    from sargnn.training.worlds.compare import Difference, Outcome

_WIDTH = 80
Row = tuple[str, str]


def check_model(mapping: dict[str, Any]) -> int:
    """Train on one worker and on two, print what differs first; 1 if anything does.

    Args:
        mapping: composed, with ``json``.
    """
    from sargnn.config.run import parse

    as_json = mapping.pop("json")
    config = parse(mapping)
    from sargnn.launch.compare_worlds import compare_worlds

    graph, outcome = compare_worlds(config)
    if as_json:
        print(json.dumps(as_mapping(config, graph, outcome), indent=2))
    else:
        show(config, graph, outcome)
    return 0 if outcome.first is None else 1


def as_mapping(config: RunConfig, graph: Graph, outcome: Outcome) -> dict[str, Any]:
    """The same for scripts."""
    from dataclasses import asdict

    from sargnn.launch.compare_worlds import STEPS, WORLDS

    return {
        "agrees": outcome.first is None,
        "model": config.model.title,
        "mode": config.mode.name,
        "precision": config.precision,
        "worlds": list(WORLDS),
        "steps": STEPS,
        "graph": asdict(graph),
        "tensors_compared": outcome.compared,
        "first": None if outcome.first is None else _difference(outcome.first, graph),
    }


def _difference(first: Difference, graph: Graph) -> dict[str, Any]:
    entry, (file, number, text) = first.entry, _line(first)
    return {
        "step": entry.step,
        "during": entry.during,
        "what": entry.what,
        "file": file,
        "line": number,
        "text": text,
        "shape": list(entry.shape),
        "shapes_on_two_workers": [list(shape) for shape in first.shapes],
        "rows": rows_of(first, graph),
        "difference": first.size,
        "differs_too": list(first.reaches),
        "hint": first.hint,
    }


def show(config: RunConfig, graph: Graph, outcome: Outcome) -> None:
    """Print it for a person."""
    from sargnn.launch.compare_worlds import STEPS
    from sargnn.tracking.tables import info_table

    part = f", of {graph.of_nodes:,}: what surrounds some training nodes" if graph.of_nodes > graph.nodes else ""
    rows = [
        ("model", f"{config.model.title}, mode {config.mode.name}, {config.precision}"),
        ("graph", f"{graph.name}: {graph.nodes:,} nodes{part}; {graph.edges:,} directed edges"),
    ]
    if outcome.first is None:
        info_table(rows)
        print()
        text = f"All agree on 1 and on 2 workers: {outcome.compared:,} tensors of {STEPS} steps of training and an evaluation."
        print(textwrap.fill(text, _WIDTH))
        return
    info_table([*rows, *_difference_rows(outcome.first, graph)])
    print("\n" + textwrap.fill(f"What to do: {outcome.first.hint}.", _WIDTH, break_long_words=False, break_on_hyphens=False))


def _difference_rows(first: Difference, graph: Graph) -> Iterator[Row]:
    entry, (file, number, text) = first.entry, _line(first)
    yield "", ""
    yield "differs first", f"{entry.what}, {'a ' * (entry.during in ('gradient', 'buffer', 'parameter'))}{entry.during}"
    yield "step", f"{entry.step}" + (", in the evaluation after it" if entry.during == "evaluation" else "")
    if file is not None:
        yield "line", f"{file} line {number}"
        if text:
            yield "", text
    several = " and ".join(str(list(shape)) for shape in first.shapes)
    yield "shape", f"{list(entry.shape)} on 1 worker, {several} on 2"
    yield "rows", rows_of(first, graph)
    yield "difference", "not even the rows are the same" if first.size is None else f"{first.size:.2g} of its norm"
    yield "differ too", ", ".join(first.reaches) or "no output, loss, gradient or parameter of these steps"


def rows_of(first: Difference, graph: Graph) -> str:
    """What the rows of a tensor are, in words."""
    entry = first.entry
    if entry.kind in ("nodes", "edges"):
        return f"{entry.kind}, compared by their original ids"
    if entry.kind == "loose" or any(shape != entry.shape for shape in first.shapes):
        return "of a worker, but none of the graph's in its order; compared by sums over all"
    return "none; it should be the same on each worker"


def _line(first: Difference) -> tuple[str | None, int | None, str]:
    """File, line and its text."""
    match = re.fullmatch(r"(.*) line (\d+)", first.entry.place)
    if match is None:
        return None, None, ""
    file, number = match.group(1), int(match.group(2))
    return file, number, linecache.getline(file, number).strip()
