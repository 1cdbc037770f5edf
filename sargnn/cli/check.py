"""``sargnn check``: a graph looked over, and what of it matters for training; with a model, whether that computes the same on
one worker and on two, and where it does not.
"""

from __future__ import annotations

import dataclasses
import json
import linecache
import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sargnn.cli.command_line import CommandLine
from sargnn.cli.compose import compose_verb
from sargnn.config.fields import as_mapping, build
from sargnn.config.run import RunConfig, parse
from sargnn.config.verbs import CheckConfig
from sargnn.errors import ConfigError
from sargnn.tracking.memory import human_bytes
from sargnn.tracking.progress import Steps
from sargnn.tracking.tables import show_table

if TYPE_CHECKING:
    from sargnn.graph.examine import Findings, LabelFindings, PairFindings
    from sargnn.run.compare_worlds import Graph
    from sargnn.training.compare_worlds import Difference, Outcome

_WIDTH = 80
_SHOWN = 10
_OF_GRAPH = ("dataset", "store_dir", "prepare", "json")
Row = tuple[str, str]


def main(line: CommandLine) -> int:
    mapping = compose_verb("check", line.overrides, folders=line.folders)
    if (mapping.get("model") or {}).get("name") is not None:
        return check_model(mapping)
    for word in line.overrides:
        key = word.lstrip("+~").partition("=")[0]
        if key.partition(".")[0] not in (*_OF_GRAPH, "task", "hydra") and word not in ("model=null", "experiment=null"):
            raise ConfigError(
                "Without a model this verb looks at the graph alone.",
                given=word,
                allowed=[f"{setting}=..." for setting in _OF_GRAPH],
                hint="add the model: model=custom model.target=FILE.py:CLASS, or model=sage",
            )
    config = build(CheckConfig, {key: mapping[key] for key in _OF_GRAPH}, "")
    config.dataset.check_files()
    from sargnn.graph.dataset import open_dataset
    from sargnn.graph.examine import examine
    from sargnn.graph.remarks import make_remarks
    from sargnn.sources.prepare import prepare_dataset

    with Steps():
        path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
        dataset = open_dataset(path, verify=True)
        named = dataclasses.replace(dataset, name=config.dataset.title_of(dataset.name))
        findings = examine(named, path, config.prepare.bytes)
    remarks = make_remarks(findings, as_mapping(config.dataset))
    if config.json:
        said = {"remarks": [dataclasses.asdict(remark) for remark in remarks]}
        print(json.dumps(dataclasses.asdict(findings) | said, indent=2))
        return 0
    show_table((), list(_figures(findings)))
    print("\nWhat matters for training:" if remarks else "\nNothing to remark: this graph can be trained on as it is.")
    for remark in remarks:
        print(textwrap.fill(remark.text, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False))
        if remark.setting:
            print(f"  {remark.setting}")
    return 0


def _figures(findings: Findings) -> Iterator[Row]:
    from sargnn.graph.examine import HIDDEN

    nodes, edges = (sum(kind.count for kind in of) for of in (findings.nodes.values(), findings.edges))
    yield findings.name, f"{nodes:,} nodes, {edges:,} directed edges"
    for name, of_type in findings.nodes.items():
        yield (f"nodes: {name}" if len(findings.nodes) > 1 else "nodes"), f"{of_type.count:,}"
        yield "  in-degree", f"median {of_type.in_median:g}, at most {of_type.in_max:,}"
        yield "  out-degree", f"median {of_type.out_median:g}, at most {of_type.out_max:,}"
        yield "  isolated", f"{of_type.without_edges:,}; without in-edges {of_type.without_in_edges:,}"
    yield from _of_edges(findings)
    if findings.pairs is not None:
        yield from _of_pairs(findings.pairs)
    if findings.labels.labelled or findings.pairs is None:
        yield from _of_labels(findings.labels)
    tables = {(f"features: {name}" if len(findings.features) > 1 else "features"): f for name, f in findings.features.items()}
    if findings.edge_features is not None:
        tables["edge features"] = findings.edge_features
    for name, features in tables.items():
        text = f"{features.width:,}, up to {features.largest:.3g} in size" if features.width else "none"
        yield name, text
        if features.width:
            yield "  constant columns", f"{len(features.constant):,}; rows of zeros {features.zero_rows:,}"
    sizes = findings.sizes
    yield "sizes", f"features {human_bytes(sizes.features_bytes)}, edges {human_bytes(sizes.edges_bytes)}"
    yield "", f"the store on disk {human_bytes(sizes.store_bytes)}"
    yield "", f"a hidden layer of {HIDDEN} in fp32, all nodes: {human_bytes(sizes.hidden_bytes)}"


def _of_edges(findings: Findings) -> Iterator[Row]:
    for edges in findings.edges:
        relation = f"{edges.source} {edges.name} {edges.destination}: " if findings.typed else ""
        yield "edges", f"{relation}{edges.count:,}"
        loops = f"self-loops {edges.loops:,}; " if edges.source == edges.destination else ""
        yield "  of these", f"{loops}repeats of another edge {edges.repeats:,}"
        if edges.with_inverse is not None:
            yield "  with their inverse", f"{'about ' if edges.about else ''}{100 * edges.with_inverse:.4g}%"
    if (weights := findings.weights) is not None:
        some = f"{weights.zeros:,} are 0, {weights.negative:,} negative"
        yield "  weights", f"{weights.smallest:.4g} to {weights.largest:.4g}; {some}"
    if (near := findings.homophily) is not None:
        yield "  inside a class", f"{near.same:.1%} of {near.edges:,} between labelled nodes; {near.chance:.1%} by chance"


def _of_pairs(pairs: PairFindings) -> Iterator[Row]:
    split = ", ".join(f"{name} {count:,}" for name, count in pairs.split.items())
    if pairs.labelled is not None:
        yield "labelled edges", f"{pairs.labelled[0]:,} (task {pairs.labelled[1]})"
        yield "  split", split if any(pairs.split.values()) else "none: dataset.link_split=[0.6,0.2,0.2] draws one"
        return
    yield "pairs", split
    kinds = ["the same both ways" if pairs.both_ways else "directed", *(["with weights"] if pairs.weighted else [])]
    yield "  of these", ", ".join(kinds)
    for split, count in pairs.negatives.items():
        yield f"  {split}", f"measured against {count:,} negatives"
    for split, count in pairs.candidates.items():
        yield f"  {split}", f"each measured against {count:,} tails of its own"


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


def check_model(mapping: dict[str, Any]) -> int:
    """Train on one worker and on two, print what differs first; 1 if anything does."""
    as_json = mapping.pop("json")
    config = parse(mapping)
    from sargnn.run.compare_worlds import compare_worlds

    graph, outcome = compare_worlds(config)
    if as_json:
        print(json.dumps(_for_scripts(config, graph, outcome), indent=2))
    else:
        show(config, graph, outcome)
    return 0 if outcome.first is None else 1


def _for_scripts(config: RunConfig, graph: Graph, outcome: Outcome) -> dict[str, Any]:
    from sargnn.run.compare_worlds import STEPS, WORLDS

    mapping = {
        "agrees": outcome.first is None,
        "model": config.model.title,
        "mode": config.mode.name,
        "precision": config.precision,
        "worlds": list(WORLDS),
        "steps": STEPS,
        "graph": dataclasses.asdict(graph),
        "tensors_compared": outcome.compared,
        "largest_difference": outcome.largest,
        "first": None,
    }
    if (first := outcome.first) is None:
        return mapping
    entry, (file, number, text) = first.entry, _line(first)
    mapping["first"] = {
        "step": entry.step,
        "during": entry.during,
        "what": entry.what,
        "file": file,
        "line": number,
        "text": text,
        "shape": list(entry.shape),
        "shapes_on_several_workers": [list(shape) for shape in first.shapes],
        "rows": rows_of(first, graph),
        "difference": first.size,
        "differs_too": list(first.reaches),
        "hint": first.hint,
    }
    return mapping


def show(config: RunConfig, graph: Graph, outcome: Outcome) -> None:
    from sargnn.run.compare_worlds import STEPS, WORLDS

    several = max(WORLDS)
    part = f", of {graph.of_nodes:,}: what surrounds some training nodes" if graph.of_nodes > graph.nodes else ""
    rows = [
        ("model", f"{config.model.title}, mode {config.mode.name}, {config.precision}"),
        ("graph", f"{graph.name}: {graph.nodes:,} nodes{part}; {graph.edges:,} directed edges"),
    ]
    if (first := outcome.first) is None:
        show_table((), rows)
        print()
        text = f"All agree on 1 and on {several} workers: {outcome.compared:,} tensors of {STEPS} steps of training and an "
        text += "evaluation. "
        text += f"The largest difference is {outcome.largest:.1g} of a tensor's norm."
        print(textwrap.fill(text, _WIDTH))
        return
    entry, (file, number, text) = first.entry, _line(first)
    shapes = " and ".join(str(list(shape)) for shape in first.shapes)
    rows += [
        ("", ""),
        ("differs first", f"{entry.what}, {'a ' * (entry.during in ('gradient', 'buffer', 'parameter'))}{entry.during}"),
        ("step", f"{entry.step}" + (", in the evaluation after it" if entry.during == "evaluation" else "")),
        *([("line", f"{file} line {number}")] if file is not None else []),
        *([("", text)] if text else []),
        ("shape", f"{list(entry.shape)} on 1 worker, {shapes} on {several}"),
        ("rows", rows_of(first, graph)),
        ("difference", "not even the rows are the same" if first.size is None else f"{first.size:.2g} of its norm"),
        ("differ too", ", ".join(first.reaches) or "no output, loss, gradient or parameter of these steps"),
    ]
    show_table((), rows)
    print("\n" + textwrap.fill(f"What to do: {first.hint}.", _WIDTH, break_long_words=False, break_on_hyphens=False))


def rows_of(first: Difference, graph: Graph) -> str:
    """What the rows of a tensor are, in words."""
    entry = first.entry
    if entry.kind in ("nodes", "edges"):
        return f"{entry.kind}, compared by their original ids"
    if entry.kind == "loose" or any(shape != entry.shape for shape in first.shapes):
        return "of a worker, but none of the graph's in its order; compared by sums over all"
    return "none; it should be the same on each worker"


def _line(first: Difference) -> tuple[str | None, int | None, str]:
    """File, line number and the line's text."""
    match = re.fullmatch(r"(.*) line (\d+)", first.entry.place)
    if match is None:
        return None, None, ""
    file, number = match.group(1), int(match.group(2))
    return file, number, linecache.getline(file, number).strip()
