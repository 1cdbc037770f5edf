"""``sargnn check``: a graph looked over, and what of it matters for training; with a model, that (``check_model``)."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sargnn.cli.command_line import CommandLine
from sargnn.errors import ConfigError

if TYPE_CHECKING:
    from sargnn.data.examine.dataset import Findings
    from sargnn.data.examine.labels import LabelFindings
    from sargnn.data.examine.remarks import Remark

_WIDTH = 80
_SHOWN = 10
_OF_GRAPH = ("dataset", "store_dir", "prepare", "json")
Row = tuple[str, str]


def main(line: CommandLine) -> int:
    """Make the dataset store where it is missing; print figures and advice, or with a model what differs between worlds."""
    from sargnn.cli.compose import compose_verb

    mapping = compose_verb("check", line.overrides, folders=line.folders)
    if (mapping.get("model") or {}).get("name") is not None:
        from sargnn.cli.check_model import check_model

        return check_model(mapping)
    from sargnn.verb_config import parse_check

    config = parse_check({key: mapping[key] for key in _of_graph(line.overrides)})
    config.dataset.check_files()
    from sargnn.data.dataset import open_dataset
    from sargnn.data.examine.dataset import examine
    from sargnn.data.examine.remarks import make_remarks
    from sargnn.data.prepare import prepare_dataset
    from sargnn.decides import as_mapping
    from sargnn.tracking.progress import Steps
    from sargnn.tracking.tables import info_table

    with Steps():
        path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
        dataset = open_dataset(path, verify=True)
        named = dataclasses.replace(dataset, name=config.dataset.title_of(dataset.name))
        found = examine(named, path, config.prepare.bytes)
    remarks = make_remarks(found, as_mapping(config.dataset))
    if config.json:
        print(json.dumps(dataclasses.asdict(found) | {"remarks": [dataclasses.asdict(one) for one in remarks]}, indent=2))
        return 0
    info_table(list(figures(found)))
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
                allowed=[f"{one}=..." for one in _OF_GRAPH],
                hint="add the model: model=custom model.target=FILE.py:CLASS, or model=sage",
            )
    return _OF_GRAPH


def _advice(remarks: list[Remark]) -> Iterator[str]:
    if not remarks:
        yield "Nothing to remark: this graph can be trained on as it is."
        return
    yield "What matters for training:"
    for one in remarks:
        yield from textwrap.wrap(one.text, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        if one.setting:
            yield f"  {one.setting}"


def figures(found: Findings) -> Iterator[Row]:
    """The table's rows."""
    from sargnn.data.examine.dataset import HIDDEN
    from sargnn.tracking.memory import human_bytes

    nodes, edges = (sum(one.count for one in of) for of in (found.nodes.values(), found.edges))
    yield found.name, f"{nodes:,} nodes, {edges:,} directed edges"
    yield from _of_nodes(found)
    yield from _of_edges(found)
    yield from _of_labels(found.labels)
    yield from _of_features(found)
    sizes = found.sizes
    yield "sizes", f"features {human_bytes(sizes.features_bytes)}, edges {human_bytes(sizes.edges_bytes)}"
    yield "", f"the store on disk {human_bytes(sizes.store_bytes)}"
    yield "", f"a hidden layer of {HIDDEN} in fp32, all nodes: {human_bytes(sizes.hidden_bytes)}"


def _of_nodes(found: Findings) -> Iterator[Row]:
    for name, one in found.nodes.items():
        yield (f"nodes: {name}" if len(found.nodes) > 1 else "nodes"), f"{one.count:,}"
        yield "  in-degree", f"median {one.in_median:g}, at most {one.in_max:,}"
        yield "  out-degree", f"median {one.out_median:g}, at most {one.out_max:,}"
        yield "  isolated", f"{one.without_edges:,}; without in-edges {one.without_in_edges:,}"


def _of_edges(found: Findings) -> Iterator[Row]:
    for one in found.edges:
        yield "edges", f"{one.source} {one.name} {one.destination}: {one.count:,}" if found.typed else f"{one.count:,}"
        loops = f"self-loops {one.loops:,}; " if one.source == one.destination else ""
        yield "  of these", f"{loops}repeats of another edge {one.repeats:,}"
        if one.with_inverse is not None:
            yield "  with their inverse", f"{'about ' if one.about else ''}{100 * one.with_inverse:.4g}%"
    if (weights := found.weights) is not None:
        some = f"{weights.zeros:,} are 0, {weights.negative:,} negative"
        yield "  weights", f"{weights.smallest:.4g} to {weights.largest:.4g}; {some}"
    if (near := found.homophily) is not None:
        yield "  inside a class", f"{near.same:.1%} of {near.edges:,} between labelled nodes; {near.chance:.1%} by chance"


def _of_labels(found: LabelFindings) -> Iterator[Row]:
    yield "labelled nodes", f"{found.labelled:,} (task {found.task})"
    yield "split", ", ".join(f"{name} {count:,}" for name, count in found.split.items())
    if (classes := found.classes) is not None:
        gaps = (("nodes", classes.without_nodes), ("training nodes", classes.without_training))
        missing = [f"without {what} {len(numbers):,}" for what, numbers in gaps if numbers]
        yield "classes", "; ".join([f"{len(classes.nodes):,}", *missing])
        if classes.of_training is not None:
            test = f", {classes.of_test:.1%} of test nodes" if classes.of_test is not None else ""
            yield "  largest", f"class {classes.largest}: {classes.of_training:.1%} of training nodes{test}"
    elif found.task == "multilabel":
        yield "labels", f"{len(found.columns):,}; training nodes that have each:"
        for number, one in enumerate(found.columns[:_SHOWN]):
            yield f"  {number}", f"{one.positives:,} of {one.known:,}"
        rest = sorted(one.positives or 0 for one in found.columns[_SHOWN:])
        if rest:
            yield f"  {_SHOWN} to {len(found.columns) - 1}", f"{rest[0]:,} to {rest[-1]:,}, median {rest[len(rest) // 2]:,}"
    else:
        yield "targets", f"{len(found.columns):,}; on training nodes:"
        for number, one in enumerate(found.columns[:_SHOWN]):
            yield f"  {number}", f"mean {one.mean:.4g}, standard deviation {one.deviation:.4g}"
        if len(found.columns) > _SHOWN:
            yield "", f"and {len(found.columns) - _SHOWN:,} more (json=true has all)"


def _of_features(found: Findings) -> Iterator[Row]:
    for name, one in found.features.items():
        text = f"{one.width:,}, up to {one.largest:.3g} in size" if one.width else "none"
        yield (f"features: {name}" if len(found.features) > 1 else "features"), text
        if one.width:
            yield "  constant columns", f"{len(one.constant):,}; rows of zeros {one.zero_rows:,}"
