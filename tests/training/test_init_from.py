"""``init_from=RUN``: a new run from another run's parameters, bit for bit, whatever else is new; or one message why not."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from sargnn.comm.group import Group
from sargnn.config.run import RunConfig, load, parse
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.graph.schema import Schema
from sargnn.models.inputs import GraphShape
from sargnn.run.checkpoints import find_start
from sargnn.run.job import begin
from sargnn.tracking.files import read_inputs
from sargnn.training import checkpoint
from sargnn.training.build import make_model
from sargnn.training.checkpoint import check_start, open_start
from tests.graphs import typed_graph
from tests.in_process import kept_handlers
from tests.in_process import sargnn_here as run
from tests.parity import cases
from tests.pool import pool
from tests.run.runs import summary_of

TINY = ["dataset.num_nodes=300", "model.hidden=8", "model.dropout=0", "eval_every=2", "tracking=none", "threads=1"]


def trained(folder: Path, *words: str) -> None:
    done = run(folder, "train", *words)
    assert done.returncode == 0, done.stderr


def losses(folder: Path, name: str) -> list[float]:
    found: list[float] = summary_of(folder / name)["losses"]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of four epochs on one and two workers, with a checkpoint after the third, too."""
    folder = tmp_path_factory.mktemp("sources")
    for world in (1, 2):
        trained(folder, *TINY, f"world={world}", "epochs=4", "checkpoint.every=3", f"run_dir=source{world}")
        assert [path.name[-1] for path in checkpoint.existing(folder / f"source{world}")] == ["3", "4"]
    return folder


def copied(folder: Path, name: str, to: Path) -> Path:
    """A copy of a run, as it was after its third epoch."""
    shutil.copytree(folder / name, to)
    shutil.rmtree(to / "checkpoints" / "epoch_000004")
    return to


@pytest.mark.parametrize("world", [1, 2])
def test_the_first_loss_is_that_of_the_epoch_that_would_have_come(folder: Path, world: int) -> None:
    """The optimizer has no part in it; schedule, seed and number of epochs may be others."""
    start = f"init_from=source{world}/checkpoints/epoch_000003"
    changes = ["optim=adamw", "optim.schedule=cosine", "optim.lr=1e-9", "seed=5", f"world={world}", "epochs=2"]
    trained(folder, *TINY, *changes, start, f"run_dir=new{world}")
    new = losses(folder, f"new{world}")
    assert new[0] == losses(folder, f"source{world}")[3] and len(new) == 2
    assert new[1] == pytest.approx(new[0], rel=1e-5)
    config = load(folder / f"new{world}" / "config.yaml")
    assert config.init_from == str(folder.resolve() / f"source{world}" / "checkpoints" / "epoch_000003")
    assert dataclasses.replace(config, init_from="elsewhere").config_hash == config.config_hash
    assert dataclasses.replace(config, init_from=None, init_digest=None).config_hash != config.config_hash


def test_the_newest_checkpoint_on_other_workers_in_another_precision(folder: Path, tmp_path: Path) -> None:
    source = copied(folder, "source1", tmp_path / "source")
    words = ["world=3", "mode=one_shot", "partitioner=random", "precision=fp64", "epochs=1", f"init_from={source}"]
    trained(folder, *TINY, *words, "run_dir=elsewhere")
    assert losses(folder, "elsewhere")[0] == pytest.approx(losses(folder, "source1")[3], rel=1e-5)


@pytest.mark.long
def test_another_graph_of_the_same_widths(folder: Path) -> None:
    """It starts where the source stands, which is better than at nothing; and evaluates with its batch norm's statistics."""
    other = [*TINY, "dataset.seed=4", "dataset.num_nodes=350", "world=2", "optim.lr=1e-9", "epochs=2", "model.dropout=0.1"]
    trained(folder, *other, "init_from=source2", "run_dir=other")
    trained(folder, *other, "run_dir=scratch")
    assert losses(folder, "other")[0] < 0.95 * losses(folder, "scratch")[0]
    states = [
        checkpoint.open_checkpoint(checkpoint.path_of(folder / name, epoch), verify=True)
        for name, epoch in (("other", 2), ("source2", 4), ("scratch", 2))
    ]
    buffers = [np.concatenate([one.array(name) for name in one.files if name.endswith("running_mean")]) for one in states]
    assert np.abs(buffers[0] - buffers[1]).max() < np.abs(buffers[2] - buffers[1]).max()
    assert states[0].meta["epoch"] == 2 and len(states[0].meta["series"]["losses"]) == 2


def test_a_run_goes_on_without_its_source_and_knows_the_content_and_not_the_place(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "stores", tmp_path / "stores")
    source, copy = (copied(folder, "source2", tmp_path / name) for name in ("source", "copy"))
    words = [*TINY, "world=2", "model.dropout=0.3"]
    trained(tmp_path, *words, "epochs=2", "init_from=source", "run_dir=one")
    one = load(tmp_path / "one" / "config.yaml")
    moved = find_start(dataclasses.replace(one, init_from=str(copy), init_digest=None))
    assert moved.config_hash == one.config_hash and moved.init_from != one.init_from
    shutil.rmtree(source)
    trained(tmp_path, "resume=one", "epochs=4")
    trained(tmp_path, *words, "epochs=4", "init_from=copy", "run_dir=two")
    assert losses(tmp_path, "one") == losses(tmp_path, "two") and len(losses(tmp_path, "one")) == 4
    assert run(tmp_path, "predict", "run=one").returncode == 0
    assert summary_of(tmp_path / "one")["config_hash"] == summary_of(tmp_path / "two")["config_hash"]


def test_what_is_refused(folder: Path) -> None:
    before = sorted(path.name for path in (folder / "stores").rglob("*"))
    trained(folder, *TINY, "world=1", "epochs=1", "checkpoint.every=null", "run_dir=bare")
    for words, wanted in (
        (["model.hidden=16", "init_from=source1"], [
            "do not fit", "layers.0.", "[8, ", "[16, ", "there", "here", "and 9 more", "init_from=",
        ]),
        (["model=gcn", "init_from=source1"], ["do not fit", "none there", "none here"]),
        (["labels=masked", "init_from=source1"], ["do not fit", "[8, 74] here"]),
        (["init_from=nowhere"], ["no checkpoint", "nowhere"]),
        (["init_from=source1/checkpoints"], ["no checkpoint", "source1/checkpoints"]),
        (["init_from=bare"], ["no whole checkpoint", "checkpoint.every"]),
        (["+init_digest=abc"], ["init_digest", "itself"]),
        (["init_digest=abc"], ["no setting 'init_digest'"]),
    ):  # fmt: skip
        done = run(folder, "train", *TINY, "world=5", "run_dir=refused", *words)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
        assert all(word in done.stderr for word in wanted), done.stderr
    done = run(folder, "train", *TINY[:1], "model=label_propagation", "init_from=source1", "run_dir=refused")
    assert done.returncode == 1 and "without parameters" in done.stderr and "leave init_from out" in done.stderr, done.stderr
    for words in (["init_from=source2"], ["init_from=null"]):
        done = run(folder, "train", "resume=source1", *words)
        assert done.returncode == 1 and "not both" in done.stderr, done.stderr
    assert not (folder / "refused").exists()
    assert before == sorted(path.name for path in (folder / "stores").rglob("*"))  # nothing was cut for nothing


def test_a_damaged_source_is_named(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "source1", tmp_path / "run")
    file = next((tmp_path / "run" / "checkpoints" / "epoch_000003" / "param").iterdir())
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    done = run(tmp_path, "train", *TINY, "init_from=run/checkpoints/epoch_000003")
    assert done.returncode == 1 and "damaged" in done.stderr and file.name in done.stderr and not (tmp_path / "runs").exists()


def test_under_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is made absolute; the same words find the same run, which has a copy of its source."""
    monkeypatch.chdir(folder)
    copied(folder, "source2", folder / "moved")
    words = ["slurm", *TINY, "world=2", "epochs=2", "init_from=moved/checkpoints/epoch_000003"]
    for _ in range(2):
        assert run(folder, *words).returncode == 0
    (run_dir,) = (folder / "runs").iterdir()
    assert run(folder, "slurm", "-m", *words[1:], "seed=0,1").returncode == 0
    points = [load(path) for path in (folder / "sweeps").glob("*/00?/config.yaml")]
    assert len(points) == 2 and {one.init_from for one in points} == {load(run_dir / "config.yaml").init_from}
    assert Path(str(load(run_dir / "config.yaml").init_from)).is_absolute()
    with patch.dict(os.environ), kept_handlers():
        assert begin(run_dir, {}) == 0
        assert read_inputs(run_dir).checkpoint is None
        shutil.rmtree(folder / "moved" / "checkpoints" / "epoch_000003")
        assert begin(run_dir, {}) == 0, "the run has a copy of its own"
        shutil.rmtree(run_dir / "start")
        with pytest.raises(ConfigError, match="is gone"):
            begin(run_dir, {})
        shutil.copytree(folder / "source1" / "checkpoints" / "epoch_000003", folder / "moved" / "checkpoints" / "epoch_000003")
        with pytest.raises(ConfigError, match="has changed"):
            begin(run_dir, {})


def started(group: Group, config: RunConfig, dataset: Dataset, run_dir: str, start: str | None) -> dict[str, Any]:
    """Train and write the last checkpoint; the first loss."""
    trainer = cases.trainer_of(group, config, dataset)
    if start is not None:
        config = find_start(dataclasses.replace(config, init_from=start))
        checkpoint.fill(trainer, open_start(config), moments=False)
        if group.rank == 0:
            check_start(config, make_model(config, shape_of(dataset)), dataset.schema)
    trainer.run(0, checkpoint.Checkpoints(trainer, config, "some", Path(run_dir)))
    return {"losses": trainer.loop.history.losses}


def shape_of(dataset: Dataset) -> GraphShape:
    return GraphShape(dataset.schema, dataset.feature_widths, dataset.num_classes)


def test_embeddings_come_along_by_original_id_and_only_to_the_same_types(tmp_path: Path) -> None:
    graph = typed_graph()
    config = cases.run_config(cases.model_config("rgcn", dropout=0.0), world=2, partitioner="random", epochs=4)
    config = dataclasses.replace(
        config, checkpoint=dataclasses.replace(config.checkpoint, every=3, keep=9),
        optim=dataclasses.replace(config.optim, schedule="constant"),
    )  # fmt: skip
    wanted = pool(2)(started, config, graph, str(tmp_path / "a"), None)[0]["losses"]
    start = str(checkpoint.path_of(tmp_path / "a", 3))
    one = dataclasses.replace(config, epochs=1)
    found = pool(2)(started, one, graph, str(tmp_path / "b"), start)[0]["losses"]
    assert found == [wanted[3]]
    four = dataclasses.replace(one, world=4, partitioner=dataclasses.replace(one.partitioner, name="by_type"))
    np.testing.assert_allclose(pool(4)(started, four, graph, str(tmp_path / "c"), start)[0]["losses"], found, rtol=1e-8)

    named = find_start(dataclasses.replace(one, init_from=start))
    schema = graph.schema
    renamed = Schema(schema.node_types, schema.offsets, tuple(r._replace(name=f"{r.name}2") for r in schema.relations))
    with pytest.raises(ConfigError, match="node types or relations"):
        check_start(named, make_model(one, dataclasses.replace(shape_of(graph), schema=renamed)), renamed)
    longer = Schema(schema.node_types, (*schema.offsets[:-1], schema.offsets[-1] + 1), schema.relations)
    assert graph.feature_widths[-1] == 0  # so the last type has embeddings
    with pytest.raises(ConfigError, match=r"inputs.embeddings.04_venue: \[30, 11\] there, \[31, 11\] here"):
        check_start(named, make_model(one, dataclasses.replace(shape_of(graph), schema=longer)), longer)


def test_runs_without_it_are_as_before() -> None:
    from sargnn.cli.compose import compose_verb

    config = parse(compose_verb("train", []))
    assert config.init_from is None and find_start(config) is config
