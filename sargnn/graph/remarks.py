"""What a graph's figures mean for training: sentences, with the setting to change where one helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sargnn.graph.examine import ClassFindings, FeatureFindings, Findings, LabelFindings, WeightFindings
from sargnn.graph.examine_edges import NodeFindings

_NAMED = 10
_INVERSE, _NORMALIZE = "add_inverse_edges", "normalize_features"
_WEIGHTS = "edge_weights"
_ENOUGH_EDGES, _LITTLE = 20, 0.05
_LARGE, _SCALES = 1e3, 1e3
_MOST = 0.5


@dataclass(frozen=True)
class Remark:
    """Something that matters for training. ``setting``: what to write on the command line, or nothing."""

    text: str
    setting: str = ""


def make_remarks(findings: Findings, settings: Mapping[str, Any]) -> list[Remark]:
    """What is remarkable of a dataset with these settings, which say what can be changed; nothing where all is well."""
    several = len(findings.nodes) > 1
    remarks: list[Remark] = []
    for name, nodes in findings.nodes.items():
        remarks += _of_nodes(nodes, f" of type '{name}'" if several else "", findings.features[name].width, settings)
    remarks += _of_edges(findings, settings)
    if findings.weights is not None and settings.get(_WEIGHTS, True):
        remarks += _of_weights(findings.weights, sum(relation.count for relation in findings.edges))
    if findings.pairs is not None and any(findings.pairs.split.values()):
        remarks += _of_split(findings.pairs.split, "pairs")
    if findings.labels.labelled or findings.pairs is None:
        remarks += _of_labels(findings.labels)
    for name, features in findings.features.items():
        if features.width or not several:
            remarks += _of_features(features, f" of type '{name}'" if several else "", findings.nodes[name].count, settings)
    if findings.edge_features is not None and any(relation.count > 0 for relation in findings.edges):
        remarks += _of_edge_features(findings.edge_features)
    return remarks


def _of_nodes(nodes: NodeFindings, of_type: str, width: int, settings: Mapping[str, Any]) -> Iterator[Remark]:
    if count := nodes.without_edges:
        nodes_of = f"{_count(count, 'node')}{of_type}{_share(count, nodes.count)} {_have(count)}"
        known = "its own features" if width else "a row that is learned for each node of such a type"
        yield Remark(f"{nodes_of} no edge at all: a model knows such a node by {known} only.")
    silent = nodes.without_in_edges - nodes.without_edges
    if silent:
        scored = nodes.split_without_in_edges
        split = f" {scored:,} of the nodes without in-edges {'is' if scored == 1 else 'are'} in the split." if scored else ""
        nodes_of = f"{_count(silent, 'node')}{of_type}{_share(silent, nodes.count)} {_have(silent)}"
        yield Remark(
            f"{nodes_of} out-edges but no in-edges: messages travel from source to destination, so "
            f"none reach {'it' if silent == 1 else 'them'}.{split}",
            _true(settings, _INVERSE),
        )


def _of_edges(findings: Findings, settings: Mapping[str, Any]) -> Iterator[Remark]:
    count = sum(relation.count for relation in findings.edges)
    repeats = sum(relation.repeats for relation in findings.edges)
    if not count:
        yield Remark("There are no edges: compare with model=mlp, which needs none.")
        return
    if not findings.typed and settings.get(_INVERSE) and repeats > 0.4 * count:
        yield Remark(
            f"{repeats:,} of {count:,} edges are there twice: the raw edges hold both directions already.",
            f"dataset.{_INVERSE}=false",
        )
    elif repeats:
        edges = f"{_count(repeats, 'edge')}{_share(repeats, count)}"
        yield Remark(
            f"{edges} repeat{'s' if repeats == 1 else ''} another one: sums, means and attention count every repeat. Remove "
            "them unless they are meant; one edge with a weight, their number, says the same."
        )
    one_way = [relation for relation in findings.edges if relation.with_inverse is not None and relation.with_inverse < 1]
    if not findings.typed and one_way:
        yield Remark(
            f"The graph is not symmetric: {_percent(one_way[0].with_inverse)} of its edges have their inverse. Messages travel "
            "along an edge only; add the inverse edges unless the direction is meant.",
            _true(settings, _INVERSE),
        )
    elif one_way and settings.get(_INVERSE) is not True:
        names = _named([f"{relation.source} {relation.name} {relation.destination}" for relation in one_way])
        yield Remark(
            f"Relations without all inverse edges: {names}. Messages travel from head to tail only.", _true(settings, _INVERSE)
        )
    near = findings.homophily
    if near is not None and near.edges >= _ENOUGH_EDGES and near.same < near.chance + _LITTLE:
        shares = f"{_percent(near.same)} of edges, {_percent(near.chance)} by chance"
        yield Remark(
            f"Neighbours share a class hardly more often than by chance ({shares}): averaging them may not help. Compare with "
            "model=mlp, which reads features only."
        )


def _of_weights(findings: WeightFindings, count: int) -> Iterator[Remark]:
    without = f"dataset.{_WEIGHTS}=false"
    if not count:
        return
    if findings.zeros == count:
        yield Remark("All edge weights are 0: a model that uses them sees no neighbour.", without)
        return
    if findings.zeros:
        edges = f"{_count(findings.zeros, 'edge')}{_share(findings.zeros, count)} {_have(findings.zeros)} weight 0"
        yield Remark(f"{edges}: read like any other, and nothing comes over {'it' if findings.zeros == 1 else 'them'}.")
    if findings.negative:
        edges = f"{_count(findings.negative, 'edge')}{_share(findings.negative, count)}"
        yield Remark(
            f"{edges} {_have(findings.negative)} a negative weight (from {findings.smallest:.3g} on). Sums and attention take "
            "it; what divides by sums of weights is refused: means, gcn, rgcn, label propagation, Correct & Smooth.",
            without,
        )
    size = max(-findings.smallest, findings.largest)
    if size > _LARGE:
        yield Remark(f"Edge weights reach {size:.3g} in size, and sums over neighbours grow with them: scale them down.")


def _of_split(split: Mapping[str, int], what: str) -> Iterator[Remark]:
    if not split["valid"]:
        yield Remark(f"There are no validation {what}: neither the best epoch nor early stopping can be had.")
    if not split["test"]:
        yield Remark(f"There are no test {what}: the test figures of a run stay empty.")


def _of_labels(findings: LabelFindings) -> Iterator[Remark]:
    yield from _of_split(findings.split, "nodes")
    if findings.classes is not None:
        yield from _of_classes(findings.classes)
    if findings.task == "multilabel":
        without = [number for number, column in enumerate(findings.columns) if not column.positives]
        always = [number for number, column in enumerate(findings.columns) if column.known and column.positives == column.known]
        for numbers, what in ((without, "no training node that has it"), (always, "no training node without it")):
            if numbers:
                yield Remark(f"{_labels('Label', numbers)} {_have(len(numbers))} {what}: nothing is learned of it.")
    if findings.task == "regression":
        spread = [(column.mean or 0.0, column.deviation or 0.0) for column in findings.columns]
        constant = [number for number, (_, deviation) in enumerate(spread) if not deviation]
        far = [n for n, (mean, deviation) in enumerate(spread) if deviation and (not 0.1 <= deviation <= 10 or abs(mean) > 10)]
        if constant:
            yield Remark(f"{_labels('Target', constant)} {_have(len(constant))} one number for all training nodes.")
        if far:
            mean, deviation = spread[far[0]]
            yield Remark(
                f"{_labels('Target', far)} {'is' if len(far) == 1 else 'are'} far from unit scale ({far[0]}: mean {mean:.3g}, "
                f"standard deviation {deviation:.3g}). Standardise: subtract the mean of the training nodes and divide by "
                "their standard deviation, or many epochs go into finding the scale."
            )


def _of_classes(findings: ClassFindings) -> Iterator[Remark]:
    if numbers := findings.without_training:
        lost = sum(findings.evaluated[number] for number in numbers)
        also = f"; {_count(lost, 'validation or test node')} cannot be answered rightly" if lost else ""
        yield Remark(f"{_labels('Class', numbers)} {_have(len(numbers))} no training nodes{also}.")
    if numbers := findings.without_nodes:
        yield Remark(
            f"{_labels('Class', numbers)} {_have(len(numbers))} no nodes at all: outputs that are never used. Number the "
            "classes without gaps."
        )
    if findings.of_training is not None and findings.of_training > _MOST and len(findings.nodes) > 1:
        score = f" and scores {_percent(findings.of_test)} on test nodes" if findings.of_test is not None else ""
        yield Remark(
            f"Class {findings.largest} has {_percent(findings.of_training)} of the training nodes: to answer it always is "
            f"right as often{score}. What a model knows is what goes beyond."
        )


def _of_features(findings: FeatureFindings, of_type: str, count: int, settings: Mapping[str, Any]) -> Iterator[Remark]:
    if not findings.width or (findings.constant and len(findings.constant) == findings.width and count > 1):
        what = "are the same for all nodes" if findings.width else "are missing"
        yield Remark(f"Features{of_type} {what}: a model has only edges to tell nodes apart. Degrees or positions would help.")
        return
    if findings.constant and count > 1:
        columns = (
            f"{_count(len(findings.constant), 'feature column')} of {findings.width}{of_type} {_have(len(findings.constant))}"
        )
        yield Remark(
            f"{columns} one value for all nodes ({_named(findings.constant)}; the first is 0): leave out what tells nothing."
        )
    if findings.zero_rows:
        nodes = f"{_count(findings.zero_rows, 'node')}{of_type}{_share(findings.zero_rows, count)}"
        yield Remark(f"{nodes} {_have(findings.zero_rows)} nothing but zeros as features.")
    advice = "scale the columns, or normalize the rows"
    yield from _of_scales(findings, f"Feature columns{of_type}", f"Features{of_type}", advice, _true(settings, _NORMALIZE))


def _of_edge_features(findings: FeatureFindings) -> Iterator[Remark]:
    if findings.constant:
        columns = f"{_count(len(findings.constant), 'column')} of {findings.width} edge features"
        yield Remark(
            f"{columns} {_have(len(findings.constant))} one value on all edges ({_named(findings.constant)}; the first is 0): "
            "leave out what tells nothing."
        )
    yield from _of_scales(findings, "Columns of edge features", "Edge features", "scale the columns", "")


def _of_scales(findings: FeatureFindings, columns: str, features: str, advice: str, setting: str) -> Iterator[Remark]:
    small, large = findings.smallest_column, findings.largest_column
    if small is not None and large is not None and large[1] > _SCALES * small[1]:
        yield Remark(
            f"{columns} differ in scale: column {large[0]} reaches {large[1]:.3g}, column {small[0]} only "
            f"{small[1]:.3g} (the first is 0). Scale each column, such as to mean 0 and standard deviation 1."
        )
    elif findings.largest > _LARGE:
        yield Remark(f"{features} reach {findings.largest:.3g} in size: {advice}.", setting)


def _true(settings: Mapping[str, Any], name: str) -> str:
    """How to switch a setting on that the dataset has and that is off."""
    return f"dataset.{name}=true" if settings.get(name) is False else ""


def _named(things: Sequence[object]) -> str:
    more = len(things) - _NAMED
    return ", ".join(map(str, things[:_NAMED])) + (f" and {more:,} more" if more > 0 else "")


def _labels(what: str, numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    return f"{len(numbers):,} {what.lower()}{'es' if what.endswith('s') else 's'} ({_named(numbers)})"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _have(number: int) -> str:
    return "has" if number == 1 else "have"


def _share(part: int, whole: int) -> str:
    return f" ({_percent(part / whole)})"


def _percent(share: float | None) -> str:
    """Rounded, but 0% and 100% only where it is so."""
    assert share is not None
    text = f"{100 * share:.1f}%" if 0.001 <= share <= 0.999 else f"{100 * share:.3g}%"
    return "99.9%" if text == "100%" and share < 1 else text
