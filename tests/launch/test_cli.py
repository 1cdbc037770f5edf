"""The command line without training: help, imports, mistakes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.test_train import run

HEAVY = ("torch", "dgl", "mlflow", "numba", "pandas")


def test_help_is_light_and_fits(tmp_path: Path) -> None:
    script = (
        "import sys; from sargnn.cli.main import main; code = main(['--help']); "
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.strip() == "[]"
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_a_worker_imports_neither_mlflow_nor_pandas_nor_dgl() -> None:
    heavy = ("dgl", "mlflow", "ogb", "pandas", "matplotlib", "hydra", "omegaconf", "rich")
    script = f"import sys; import sargnn.launch.worker; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], ["no verb 'trian'", "train"]),
        (["mode=sar"], ["sargnn train mode=sar"]),
        (["train", "mode=saar"], ["'mode' has no option 'saar'", "sar"]),
        (["train", "wrld=3"], ["no setting 'wrld'", "world"]),
        (["train", "model.hiden=3"], ["no setting 'model.hiden'", "model.hidden"]),
        (["train", "engine.cache_statik=false"], ["no setting 'engine.cache_statik'", "engine.cache_static"]),
        (["train", "engine.cache_static=maybe"], ["'engine.cache_static'", "auto, false"]),
        (["train", "mode=domain_parallel", "kernel=fused"], ["use one_shot"]),
        (["train", "dataset=products_like", "dataset.scale=0"], ["dataset.scale", "more than 0"]),
        (["train", "dataset=products_like", "dataset.scale=1e-6"], ["communities", "at least"]),
        (["train", "+modle=3"], ["no setting 'modle'", "model"]),
        (["train", "epochs=0"], ["'epochs' is out of range", "at least 1"]),
        (["train", "world=0"], ["'world' is out of range"]),
        (["train", "optim.lr=nan"], ["'optim.lr' is out of range"]),
        (["train", "dataset=ogb_dir"], ["'dataset.root' must be given"]),
        (["train", "dataset=ogb_dir", "dataset.root=/nowhere"], ["folder does not exist", "/nowhere"]),
        (["train", "dataset.num_nodes=5", "world=6"], ["more workers than nodes"]),
        (["train", "world=x=y"], ["world=x=y"]),
        (["train", "store_dir=/proc/none"], ["/proc/none"]),
        (["train", "run_dir=/proc/none", "dataset.num_nodes=50", "world=1"], ["/proc/none", "run folder"]),
    ],
)
def test_mistakes_are_answered(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 10, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_cache_of_machine_code_watches_every_kernel() -> None:
    from sargnn.launch.env import compiled_sources

    names = {path.name for path in compiled_sources()}
    assert {"cpu_rows.py", "llvm.py", "cpu_attention_code.py", "cpu_spmm.py", "rng.py", "rows.py", "cpu_nodewise.py"} <= names
