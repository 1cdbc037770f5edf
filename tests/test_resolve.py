"""What lies outside the package: files and modules that a target names, each mistake with the message a person gets."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.cli.compose import compose_verb
from sargnn.config.run import RunConfig, load, parse, save
from sargnn.engine.reducers.sum import Mean
from sargnn.errors import ConfigError
from sargnn.graph.dataset import open_dataset
from sargnn.partition.prepare import prepare_partition
from sargnn.resolve import resolve
from sargnn.sources.prepare import prepare_dataset

MODEL = """
from __future__ import annotations
from dataclasses import dataclass, field
from sargnn.config.fields import RUN
from sargnn.config.fields import FRACTION
from sargnn.config.models import StackSettings

@dataclass(frozen=True)
class Toy(StackSettings):
    share: float = field(default=0.5, metadata=FRACTION)
    speed: int = field(default=1, metadata=RUN)

    @property
    def operations(self):
        return ("sum",)

    def build(self, shape):
        return ("built", self.share, shape)
"""
DATASET = """
from dataclasses import dataclass, field
import numpy as np
from sargnn.graph.dataset import Dataset, by_destination
from sargnn.sources.settings import InMemoryDataset
from sargnn.config.fields import AT_LEAST_ONE

@dataclass(frozen=True)
class Ring(InMemoryDataset):
    num_nodes: int = field(metadata=AT_LEAST_ONE)

    def read(self) -> Dataset:
        n = self.num_nodes
        ids = np.arange(n)
        indptr, indices = by_destination(ids, (ids + 1) % n, n)
        features, labels = np.eye(n, 3, dtype=np.float32), ids % 2
        return Dataset.homogeneous("ring", 2, features, labels, np.full(n, 1, np.uint8), indptr, indices)
"""
PARTITIONER = """
import numpy as np

def alternate(dataset, world, config):
    return (np.arange(dataset.num_nodes) % world).astype(np.int32)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with one file of each kind."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("toy", MODEL), ("ring", DATASET), ("alternate", PARTITIONER)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def run(**groups: Any) -> dict[str, Any]:
    """A resolved mapping; what is given replaces a group, or is put over its settings."""
    mapping = compose_verb("train", ["model=mlp"])
    for key, value in groups.items():
        mapping[key] = value if key == "dataset" else mapping[key] | value
    return mapping


def ring(**changes: Any) -> dict[str, Any]:
    return {"name": "ring", "target": "ring.py:Ring", "num_nodes": 8, **changes}


def message(call: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def test_a_model_of_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse(run(model={"name": "toy", "target": "toy.py:Toy", "share": 0.25}))
    assert config.model.target == f"{folder}/toy.py:Toy" and config.name == "toy-sar-w4-s0"
    assert config.model.build("shape") == ("built", 0.25, "shape")
    save(config, folder / "config.yaml")
    monkeypatch.chdir("/")  # workers and jobs may run elsewhere
    assert load(folder / "config.yaml") == config and type(load(folder / "config.yaml").model) is type(config.model)
    assert "model.share" in message(lambda: parse(run(model={"name": "toy", "target": str(folder / "toy.py:Toy"), "share": 2})))


def test_a_file_is_loaded_once_and_leaves_nothing_beside_it(folder: Path) -> None:
    (folder / "count.py").write_text("import sys\nsys.loads = getattr(sys, 'loads', 0) + 1\nclass A: pass\nclass B: pass\n")
    one, two = resolve("thing", {}, "count.py:A"), resolve("thing", {}, "x", f"{folder}/../{folder.name}/count.py:B")
    assert one.__module__ == two.__module__ and sys.loads == 1  # type: ignore[attr-defined]
    assert sorted(path.name for path in folder.iterdir()) == ["alternate.py", "count.py", "ring.py", "toy.py"]


def read_share(pickled: bytes) -> float:
    return float(pickle.loads(pickled).model.share)


def test_settings_reach_another_process(folder: Path) -> None:
    pickled = pickle.dumps(parse(run(model={"name": "toy", "target": "toy.py:Toy", "share": 0.25})))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(read_share, (pickled,)) == 0.25


def hash_of(**groups: Any) -> str:
    """Computed in a process of its own: a file that was loaded stays as it was loaded."""
    code = "import json, sys; from sargnn.config.run import parse; print(parse(json.loads(sys.argv[1])).config_hash)"
    import json

    done = subprocess.run([sys.executable, "-c", code, json.dumps(run(**groups))], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_content_of_a_file_decides_the_losses_and_its_place_does_not(folder: Path) -> None:
    def toy(path: str, **changes: Any) -> str:
        return hash_of(model={"name": "toy", "target": path, **changes})

    first = toy("toy.py:Toy")
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "copy.py").write_text(MODEL)
    assert toy("elsewhere/copy.py:Toy") == first == toy("toy.py:Toy", share=0.5, speed=3)
    assert toy("toy.py:Toy", share=0.25) != first
    (folder / "toy.py").write_text(MODEL + "# another\n")
    assert toy("toy.py:Toy") != first


def test_a_file_of_an_aggregator_decides_the_losses(folder: Path) -> None:
    def soft() -> str:
        return parse(compose_verb("train", ["model.aggregator=soft.py:Soft"])).config_hash

    (folder / "soft.py").write_text("from sargnn.engine.reducers.sum import Mean\nclass Soft(Mean): operation = 'softly'\n")
    first = soft()
    (folder / "soft.py").write_text("from sargnn.engine.reducers.sum import Mean\nclass Soft(Mean): operation = 'soft'\n")
    assert soft() != first  # it was not loaded yet
    config = parse(compose_verb("train", ["model.aggregator=soft.py:Soft"]))
    assert config.model.operations == ("soft",)
    assert issubclass(resolve("aggregator", {}, config.model.aggregator), Mean)  # type: ignore[attr-defined]
    assert "mean, max, sum, pool, lstm, FILE.py:NAME" in message(lambda: parse(compose_verb("train", ["model.aggregator=gat"])))


def test_a_dataset_of_a_file(folder: Path) -> None:
    config = parse(run(dataset=ring()))
    path = prepare_dataset(config.dataset, "stores")
    dataset = open_dataset(path, verify=True)
    assert dataset.num_nodes == 8 and np.array_equal(dataset.indices, (np.arange(8) - 1) % 8)
    assert prepare_dataset(parse(run(dataset=ring(add_self_loops=True))).dataset, "stores") == path
    assert prepare_dataset(parse(run(dataset=ring(num_nodes=9))).dataset, "stores") != path
    (folder / "ring2.py").write_text(DATASET.replace("% 2", "% 1"))
    assert prepare_dataset(parse(run(dataset=ring(target="ring2.py:Ring"))).dataset, "stores") != path
    assert "num_nodes' is missing" in message(lambda: parse(run(dataset={"name": "ring", "target": "ring.py:Ring"})))


def test_a_partitioner_of_a_file(folder: Path) -> None:
    def config(file: str) -> RunConfig:
        return parse(run(dataset=ring(), partitioner={"name": "alternate", "target": f"{file}.py:alternate"}) | {"world": 2})

    store = prepare_dataset(config("alternate").dataset, "stores")
    first = prepare_partition(config("alternate"), store)
    assert first.stats.edge_cut == 1.0  # of a ring: every edge
    assert prepare_partition(config("alternate"), store).path == first.path
    (folder / "copy.py").write_text(PARTITIONER)
    assert prepare_partition(config("copy"), store).path == first.path
    (folder / "other.py").write_text(PARTITIONER + "# another\n")
    assert prepare_partition(config("other"), store).path != first.path
    assert config("alternate").config_hash == parse(run(dataset=ring()) | {"world": 2}).config_hash


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("toy.py", ["toy.py", "FILE.py:NAME"]),
        ("toy.py:", ["FILE.py:NAME"]),
        (":Toy", ["FILE.py:NAME"]),
        ("a/b:Toy", ["FILE.py:NAME"]),
        ("toy.py:To y", ["FILE.py:NAME"]),
        ("nowhere.py:Toy", ["nowhere.py", "does not exist", "working folder"]),
        (".:Toy", ["FILE.py:NAME"]),
        ("toy.py:Toi", ["Toi", "allowed: Toy"]),
        ("sargnn.nowhere:Toy", ["sargnn.nowhere", "not installed"]),
        ("sargnn.config.models:SegeSettings", ["SegeSettings", "SageSettings"]),
        ("raises.py:Toy", ["ZeroDivisionError", "raises.py line 2"]),
        ("calls.py:Toy", ["JSONDecodeError", "calls.py line 2"]),
        ("exits.py:Toy", ["SystemExit", "exits.py line 2"]),
        ("syntax.py:Toy", ["SyntaxError", "syntax.py line 2"]),
        ("imports.py:Toy", ["ModuleNotFoundError", "nothing_like_it", "imports.py line 1"]),
        ("nul.py:Toy", ["nul.py", "null bytes"]),
        ("~nobody-of-this-name/toy.py:Toy", ["toy.py", "does not exist"]),
        ("a\0b.py:Toy", ["b.py", "does not exist"]),
        (f"{'x' * 300}.py:Toy", ["xxx.py", "does not exist"]),
        ("loop.py:Toy", ["loop.py", "does not exist"]),
        ("toy.py:dataclass", ["class of settings", "ModelSettings"]),
        ("ring.py:Ring", ["class of settings", "ModelSettings"]),
        ("sargnn.config.models:StackSettings", ["not complete", "build, operations"]),
    ],
)
def test_a_target_that_cannot_be_used(target: str, words: list[str], folder: Path) -> None:
    (folder / "raises.py").write_text("class Toy: pass\n1 / 0\n")
    (folder / "calls.py").write_text("import json\njson.loads('{')\n")
    (folder / "exits.py").write_text("import sys\nsys.exit(3)\n")
    (folder / "syntax.py").write_text("a = 1\nb = = 2\n")
    (folder / "imports.py").write_text("import nothing_like_it\n")
    (folder / "nul.py").write_bytes(b"a = 1\0\n")
    (folder / "loop.py").symlink_to(folder / "loop.py")
    text = message(lambda: parse(run(model={"name": "toy", "target": target})))
    assert all(word in text for word in words), text


def test_a_name_that_is_no_folder_name(folder: Path) -> None:
    for name in ("../toy", "", ".", "a/b", "x" * 200):
        assert "folder's name" in message(lambda name=name: parse(run(model={"name": name, "target": "toy.py:Toy"})))  # type: ignore[misc]


def test_modes_and_kernels_of_files(folder: Path) -> None:
    config = parse(run(mode={"name": "mine", "target": "toy.py:Toy"}, kernel={"name": "mine", "target": "toy.py:Toy"}))
    assert config.mode.choice == config.kernel.choice == f"{folder}/toy.py:Toy"
    assert resolve("mode", {}, config.mode.choice).__name__ == "Toy"
    assert parse(run()).mode.choice == "sar"
    assert config.config_hash == parse(run()).config_hash
