"""``sargnn check``: a graph looked over, and what of it matters for training; with a model, whether that computes the same on
one worker and on two, and where it does not.
"""

from __future__ import annotations

import dataclasses
import json
import linecache
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sargnn.cli.command_line import CommandLine
from sargnn.errors import ConfigError

if TYPE_CHECKING:
    from sargnn.config.run import RunConfig
    from sargnn.graph.examine import Findings, LabelFindings
    from sargnn.graph.remarks import Remark
    from sargnn.run.compare_worlds import Graph
    from sargnn.training.compare_worlds import Difference, Outcome

_WIDTH = 80
_SHOWN = 10
_OF_GRAPH = ("dataset", "store_dir", "prepare", "json")
Row = tuple[str, str]


def main(line: CommandLine) -> int:
    """Make the dataset store where it is missing; print figures and advice, or with a model what differs between worlds."""
    from sargnn.cli.compose import compose_verb

    mapping = compose_verb("check", line.overrides, folders=line.folders)
    if (mapping.get("model") or {}).get("name") is not None:
        return check_model(mapping)
    from sargnn.config.fields import build
    from sargnn.config.verbs import CheckConfig

    config = build(CheckConfig, {key: mapping[key] for key in _of_graph(line.overrides)}, "")
    config.dataset.check_files()
    from sargnn.config.decides import as_mapping
    from sargnn.graph.dataset import open_dataset
    from sargnn.graph.examine import examine
    from sargnn.graph.remarks import make_remarks
    from sargnn.sources.prepare import prepare_dataset
    from sargnn.tracking.progress import Steps
    from sargnn.tracking.tables import info_table

    with Steps():
        path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
        dataset = open_dataset(path, verify=True)
        named = dataclasses.replace(dataset, name=config.dataset.title_of(dataset.name))
        findings = examine(named, path, config.prepare.bytes)
    remarks = make_remarks(findings, as_mapping(config.dataset))
    if config.json:
        print(
            json.dumps(dataclasses.asdict(findings) | {"remarks": [dataclasses.asdict(remark) for remark in remarks]}, indent=2)
        )
        return 0
    info_table(list(figures(findings)))
    print("\n".join(["", *_advice(remarks)]))
    return 0


def _of_graph(words: Sequence[str]) -> tuple[str, ...]:
    """The settings that a graph alone is looked over with. Raises ``ConfigError`` for a word that sets another one."""
    for word in words:
        key = word.lstrip("+~").partition("=")[0]
        if key.partition(".")[0] not in (*_OF_GRAPH, "task", "hydra") and word not in ("model=null", "experiment=null"):
            raise ConfigError(
                "Without a model this verb looks at the graph alone.",
                given=word,
                allowed=[f"{setting}=..." for setting in _OF_GRAPH],
                hint="add the model: model=custom model.target=FILE.py:CLASS, or model=sage",
            )
    return _OF_GRAPH


def _advice(remarks: list[Remark]) -> Iterator[str]:
    if not remarks:
        yield "Nothing to remark: this graph can be trained on as it is."
        return
    yield "What matters for training:"
    for remark in remarks:
        yield from textwrap.wrap(remark.text, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        if remark.setting:
            yield f"  {remark.setting}"


def figures(findings: Findings) -> Iterator[Row]:
    """The table's rows."""
    from sargnn.graph.examine import HIDDEN
    from sargnn.tracking.memory import human_bytes

    nodes, edges = (sum(kind.count for kind in of) for of in (findings.nodes.values(), findings.edges))
    yield findings.name, f"{nodes:,} nodes, {edges:,} directed edges"
    yield from _of_nodes(findings)
    yield from _of_edges(findings)
    yield from _of_labels(findings.labels)
    yield from _of_features(findings)
    sizes = findings.sizes
    yield "sizes", f"features {human_bytes(sizes.features_bytes)}, edges {human_bytes(sizes.edges_bytes)}"
    yield "", f"the store on disk {human_bytes(sizes.store_bytes)}"
    yield "", f"a hidden layer of {HIDDEN} in fp32, all nodes: {human_bytes(sizes.hidden_bytes)}"


def _of_nodes(findings: Findings) -> Iterator[Row]:
    for name, nodes in findings.nodes.items():
        yield (f"nodes: {name}" if len(findings.nodes) > 1 else "nodes"), f"{nodes.count:,}"
        yield "  in-degree", f"median {nodes.in_median:g}, at most {nodes.in_max:,}"
        yield "  out-degree", f"median {nodes.out_median:g}, at most {nodes.out_max:,}"
        yield "  isolated", f"{nodes.without_edges:,}; without in-edges {nodes.without_in_edges:,}"


def _of_edges(findings: Findings) -> Iterator[Row]:
    for edges in findings.edges:
        yield (
            "edges",
            f"{edges.source} {edges.name} {edges.destination}: {edges.count:,}" if findings.typed else f"{edges.count:,}",
        )
        loops = f"self-loops {edges.loops:,}; " if edges.source == edges.destination else ""
        yield "  of these", f"{loops}repeats of another edge {edges.repeats:,}"
        if edges.with_inverse is not None:
            yield "  with their inverse", f"{'about ' if edges.about else ''}{100 * edges.with_inverse:.4g}%"
    if (weights := findings.weights) is not None:
        some = f"{weights.zeros:,} are 0, {weights.negative:,} negative"
        yield "  weights", f"{weights.smallest:.4g} to {weights.largest:.4g}; {some}"
    if (near := findings.homophily) is not None:
        yield "  inside a class", f"{near.same:.1%} of {near.edges:,} between labelled nodes; {near.chance:.1%} by chance"


def _of_labels(labels: LabelFindings) -> Iterator[Row]:
    yield "labelled nodes", f"{labels.labelled:,} (task {labels.task})"
    yield "split", ", ".join(f"{name} {count:,}" for name, count in labels.split.items())
    if (classes := labels.classes) is not None:
        gaps = (("nodes", classes.without_nodes), ("training nodes", classes.without_training))
        missing = [f"without {what} {len(numbers):,}" for what, numbers in gaps if numbers]
        yield "classes", "; ".join([f"{len(classes.nodes):,}", *missing])
        if classes.of_training is not None:
            test = f", {classes.of_test:.1%} of test nodes" if classes.of_test is not None else ""
            yield "  largest", f"class {classes.largest}: {classes.of_training:.1%} of training nodes{test}"
    elif labels.task == "multilabel":
        yield "labels", f"{len(labels.columns):,}; training nodes that have each:"
        for number, column in enumerate(labels.columns[:_SHOWN]):
            yield f"  {number}", f"{column.positives:,} of {column.known:,}"
        rest = sorted(column.positives or 0 for column in labels.columns[_SHOWN:])
        if rest:
            yield f"  {_SHOWN} to {len(labels.columns) - 1}", f"{rest[0]:,} to {rest[-1]:,}, median {rest[len(rest) // 2]:,}"
    else:
        yield "targets", f"{len(labels.columns):,}; on training nodes:"
        for number, column in enumerate(labels.columns[:_SHOWN]):
            yield f"  {number}", f"mean {column.mean:.4g}, standard deviation {column.deviation:.4g}"
        if len(labels.columns) > _SHOWN:
            yield "", f"and {len(labels.columns) - _SHOWN:,} more (json=true has all)"


def _of_features(findings: Findings) -> Iterator[Row]:
    for name, features in findings.features.items():
        text = f"{features.width:,}, up to {features.largest:.3g} in size" if features.width else "none"
        yield (f"features: {name}" if len(findings.features) > 1 else "features"), text
        if features.width:
            yield "  constant columns", f"{len(features.constant):,}; rows of zeros {features.zero_rows:,}"


def check_model(mapping: dict[str, Any]) -> int:
    """Train on one worker and on two, print what differs first; 1 if anything does.

    Args:
        mapping: composed, with ``json``.
    """
    from sargnn.config.run import parse

    as_json = mapping.pop("json")
    config = parse(mapping)
    from sargnn.run.compare_worlds import compare_worlds

    graph, outcome = compare_worlds(config)
    if as_json:
        print(json.dumps(as_mapping(config, graph, outcome), indent=2))
    else:
        show(config, graph, outcome)
    return 0 if outcome.first is None else 1


def as_mapping(config: RunConfig, graph: Graph, outcome: Outcome) -> dict[str, Any]:
    """The same for scripts."""
    from dataclasses import asdict

    from sargnn.run.compare_worlds import STEPS, WORLDS

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
    from sargnn.run.compare_worlds import STEPS
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
