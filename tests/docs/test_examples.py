"""The examples of own layers: losses of one worker and of two are the same, whether a mode folds or holds all rows."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from sargnn.cli.compose import compose_verb
from sargnn.comm.group import Group
from sargnn.config.models import CustomSettings
from sargnn.config.run import parse
from tests.graphs import nasty_graph, typed_graph, with_edge_features, with_task
from tests.parity import cases
from tests.parity.covering import only
from tests.pool import pool

LAYERS = Path(__file__).parents[2] / "examples" / "layers"
EXAMPLES = {
    "gin.py": "Gin", "edge_features.py": "Net", "written.py": "Net", "typed.py": "Net",
    "dgl_sage.py": "Sage", "dgl_gat.py": "Gat", "pyg_gcn.py": "DeepGCN", "pyg_flow.py": "Net", "pyg_deeper.py": "DeeperGCN",
    "sgformer.py": "SGFormer", "performer.py": "Performer",
}  # fmt: skip
HIDDEN = 6


def test_every_example_is_tested() -> None:
    asked = {"nbfnet.py", "ultra.py"}  # tests/tasks/test_queries.py
    assert {path.name for path in LAYERS.glob("*.py")} == set(EXAMPLES) | asked


@pytest.mark.parametrize("name", only(["gin.py", "typed.py", "dgl_sage.py", "pyg_deeper.py", "sgformer.py"], EXAMPLES))
def test_losses_of_two_workers_are_those_of_one(name: str) -> None:
    arguments = {
        "hidden_channels" if name.startswith(("pyg", "sgf", "per")) else "hidden": 8 if name == "performer.py" else HIDDEN
    }
    arguments |= {"num_layers": 3} if name == "pyg_deeper.py" else {}
    model = CustomSettings("custom", target=f"{LAYERS / name}:{EXAMPLES[name]}", args=arguments)
    graph = typed_graph() if name == "typed.py" else nasty_graph()
    first: list[float] | None = None
    for mode, world in (("sar", 1), ("sar", 2), ("one_shot", 2)):
        config = cases.run_config(model, mode=mode, world=world, partitioner="metis", epochs=2)
        loops = name == "dgl_gat.py"
        config = dataclasses.replace(config, dataset=dataclasses.replace(config.dataset, add_self_loops=loops))
        answer = cases.curve(Group.single(), config, graph) if world == 1 else pool(world)(cases.curve, config, graph)[0]
        first = first or answer["losses"]
        assert len(first) == 2 and first[0] != first[1]
        assert answer["losses"] == pytest.approx(first, rel=1e-8)


@pytest.mark.parametrize("aggr", ["softmax", "powermean"])
def test_losses_of_features_of_edges_and_several_labels(aggr: str) -> None:
    """As ogbn-proteins has them."""
    arguments = {"hidden_channels": HIDDEN, "num_layers": 3, "aggr": aggr}
    model = CustomSettings("custom", target=f"{LAYERS / 'pyg_deeper.py'}:DeeperGCN", args=arguments)
    graph = with_edge_features(with_task(nasty_graph(150), "multilabel"))
    config = cases.run_config(model, epochs=2)
    (answer,) = pool(1)(cases.curve, config, graph)
    for other in pool(2)(cases.curve, dataclasses.replace(config, world=2), graph):
        assert other["losses"] == pytest.approx(answer["losses"], rel=1e-9)
    again = with_edge_features(graph, seed=1)
    assert cases.curve(Group.single(), config, again)["losses"][0] != pytest.approx(answer["losses"][0], rel=1e-6)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_says_how_it_is_trained(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(LAYERS.parents[1])
    (command,) = re.findall(r"^sargnn train (.*)$", (LAYERS / name).read_text(), flags=re.M)
    config = parse(compose_verb("train", shlex.split(command)))
    assert config.model.target == f"{LAYERS / name}:{EXAMPLES[name]}"
    config.model.check_target()
