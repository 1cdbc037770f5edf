"""``--mem`` of a job's script: what its workers are planned to hold, where the dataset is prepared here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sargnn.cli.compose import compose_verb
from sargnn.config.run import parse
from sargnn.graph.dataset import open_dataset
from sargnn.memory import runtime
from sargnn.memory.plan_run import find_cut, plan_run
from sargnn.memory.plan_stores import (
    JOB_BYTES,
    SPARE,
    NotPlanned,
    PlannedMemory,
    node_bytes,
    plan_memory,
    slurm_bytes,
    slurm_text,
)
from sargnn.memory.plan_worker import Runtime
from sargnn.partition.prepare import prepare_partition
from sargnn.sources.prepare import prepare_dataset
from tests.in_process import sargnn_here

BASE = 300_000_000
RUN = ["dataset.num_nodes=4000", "model=gat", "model.hidden=64", "world=3", "tracking=none", "store_dir=stores"]
LINE = re.compile(r"^#SBATCH --mem=(\w+)$", flags=re.M)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runtime, "_measure_runtime", lambda config, **_: [BASE, 0])
    monkeypatch.setattr(runtime, "cache_dir", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    config = parse(compose_verb("train", RUN))
    prepare_partition(config, prepare_dataset(config.dataset, config.store_dir))
    return tmp_path


def planned(*words: str) -> list[int]:
    """What the planner says of each worker."""
    config = parse(compose_verb("train", [*RUN, *words]))
    path = prepare_dataset(config.dataset, config.store_dir)
    dataset = open_dataset(path, verify=False)
    cut = find_cut(config, dataset, path.name)
    assert cut.exact
    return [one.total for one in plan_run(config, dataset, cut, Runtime(BASE, 0)).workers]


def asked(*words: str) -> tuple[str | None, str]:
    """``--mem`` of the script, None where it is not there; and what was said."""
    done = sargnn_here(Path.cwd(), "slurm", *RUN, *words, "--dry-run")
    assert done.returncode == 0, done.stderr
    found = LINE.search(done.stdout)
    return (found[1] if found else None), done.stderr


def as_text(workers: int) -> str:
    """Independently of the package: bytes of a node's workers as ``--mem``."""
    return f"{-(-(int(workers * 1.1) + 400_000_000) // 1024**2)}M"


def test_a_script_asks_for_what_a_nodes_workers_are_planned_to_hold(folder: Path) -> None:
    one, two, three = planned()
    assert min(one, two, three) > BASE
    mem, said = asked()
    assert mem == as_text(one + two + three) and f"--mem={mem}: " in said
    assert asked("slurm.nodes=2")[0] == as_text(max(one + two, two + three))
    written = sargnn_here(folder, "slurm", *RUN, "slurm.nodes=3", "servers=1", "run_name=own")
    assert written.returncode == 0, written.stderr
    assert LINE.findall((folder / "slurm" / "own.sbatch").read_text()) == [as_text(max(one, two, three))]


def test_of_an_array_the_largest_point_counts(folder: Path) -> None:
    small, large = sum(planned("model.hidden=16")), sum(planned("model.hidden=256"))
    assert small < large
    assert asked("-m", "model.hidden=16,256", "seed=0,1", "slurm.array=true")[0] == as_text(large)


def test_a_users_own_stays_and_too_little_is_said(folder: Path) -> None:
    enough = as_text(sum(planned()))
    mem, said = asked("slurm.mem=900M")
    assert mem == "900M" and all(word in said for word in ("warning: slurm.mem=900M ", f": {enough}"))
    mem, said = asked("slurm.mem=64G")
    assert mem == "64G" and "warning" not in said
    for word, there in (("site", None), ("0", "0")):
        mem, said = asked(f"slurm.mem={word}")
        assert mem == there and "mem" not in said


def test_without_a_plan_the_sites_default_stays(folder: Path) -> None:
    mem, said = asked("dataset.num_nodes=4001")
    assert mem is None and all(word in said for word in ("--mem", "default", "not prepared"))
    assert asked("dataset.num_nodes=4001", "slurm.mem=1M") == ("1M", "")
    found = plan_memory(parse(compose_verb("train", [*RUN[1:], "dataset=ogbn-products"])))
    assert isinstance(found, NotPlanned) and "not prepared" in found.reason
    done = sargnn_here(folder, "slurm", *RUN[1:], "dataset=stored", "dataset.root=nowhere", "--dry-run")
    assert done.returncode == 0 and "#SBATCH --mem" not in done.stdout
    assert "nowhere'" in done.stderr and "no dataset store" in done.stderr
    assert not list(folder.glob("slurm")) and not list(folder.glob("runs"))


def test_a_partition_that_is_missing_is_planned_from_a_cut_and_its_making_counts(folder: Path) -> None:
    there, missing = (plan_memory(parse(compose_verb("train", [*RUN, *more]))) for more in ((), ("world=2",)))
    assert isinstance(there, PlannedMemory) and isinstance(missing, PlannedMemory)
    assert there.preparing == 0 and missing.preparing > 0 and len(missing.workers) == 2
    assert node_bytes(PlannedMemory((10, 20), preparing=10**12), per_node=2) == 10**12
    assert len(list((folder / "stores" / "partitions").iterdir())) == 1  # nothing was made


def test_sizes_are_slurms() -> None:
    assert [slurm_bytes(one) for one in ("3", "3K", "3M", "3G", "3T", "0")] == [
        3 * 2**20, 3 * 2**10, 3 * 2**20, 3 * 2**30, 3 * 2**40, None,
    ]  # fmt: skip
    assert slurm_text(1) == "1M" and slurm_text(2**20) == "1M" and slurm_text(2**20 + 1) == "2M"
    workers = (10**9, 3 * 10**9, 2 * 10**9)
    expected = {1: 3 * 10**9, 2: 5 * 10**9, 3: 6 * 10**9, 4: 6 * 10**9}
    for per_node, most in expected.items():
        assert node_bytes(PlannedMemory(workers, 0), per_node) == int(most * (1 + SPARE)) + JOB_BYTES
