"""The command line without training: help, imports, mistakes."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Sargnn


def test_a_worker_imports_neither_mlflow_nor_pandas_nor_dgl() -> None:
    heavy = ("dgl", "mlflow", "ogb", "pandas", "matplotlib", "hydra", "omegaconf", "rich")
    script = f"import sys; import sargnn.run.work; print([m for m in {heavy} if m in sys.modules])"
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
        (["train", "dataset=mag_like", "dataset.scale=1e-6"], ["communities", "at least"]),
        (["train", "model=rgcn", "model.order=both"], ["'model.order'", "aggregate_first"]),
        (["train", "model=rgcn", "model.bases=0"], ["'model.bases'", "at least 1"]),
        (["train", "model=rgcn", "mode=domain_parallel", "kernel=fused"], ["use one_shot"]),
        (
            ["train", "dataset=mag_like", "dataset.scale=0.001"],
            ["'sage' knows neither", "model=rgcn", "dataset.homogenize=true"],
        ),
        (
            ["train", "dataset=mag_like", "dataset.scale=0.001", "model=rgcn", "dataset.add_self_loops=true"],
            ["self-loops", "homogenize=true"],
        ),
        (["train", "labels=maskd"], ["'labels' has no option 'maskd'", "masked"]),
        (["train", "labels.rate=1"], ["'labels.rate'", "less than 1"]),
        (["train", "smooth=cs", "smooth.correct_adjacency=adad"], ["'smooth.correct_adjacency'", "dad, da, ad"]),
        (["train", "model=label_propagation", "mfg=true"], ["Label propagation", "mfg=false"]),
        (["train", "model=label_propagation", "labels=masked"], ["Label propagation", "labels=none"]),
        (["train", "optim.schedule=cosin"], ["'optim.schedule'", "cosine"]),
        (["train", "optim.clip=0"], ["'optim.clip'", "more than 0"]),
        (["train", "labels.reuse=1"], ["fed back", "labels=masked"]),
        (["train", "dataset.val_fraction=0", "early_stopping=3", "dataset.num_nodes=300"], ["validation nodes"]),
        (["train", "model=mlp", "smooth=cs", "mode=domain_parallel", "kernel=fused"], ["use one_shot"]),
        (["prepare", "prepare.buffer=much"], ["'prepare.buffer' is no size", "8GB"]),
        (["prepare", "prepare.buffer=1MB"], ["'prepare.buffer' is no size"]),
        (["prepare", "dataset=ogbn-products", "dataset.download=false"], ["not there", "products.zip"]),
        (["export-ogb"], ["'out' must be given"]),
        (["export-ogb", "out=x", "dataset=mag_like"], ["there twice", "dataset.add_inverse_edges=false"]),
        (["export-ogb", "out=x", "layout=typed", "dataset=synthetic", "dataset.num_nodes=100"], ["layout=typed"]),
        (["evaluate", "run=nowhere"], ["no such run", "nowhere"]),
        (["train", "+modle=3"], ["no setting 'modle'", "model"]),
        (["train", "epochs=0"], ["'epochs'", "at least 1"]),
        (["train", "world=0"], ["'world'", "at least 1"]),
        (["train", "optim.lr=nan"], ["'optim.lr'", "nan", "more than 0"]),
        (["train", "optim.lr=-0.1"], ["'optim.lr'", "more than 0"]),
        (["train", "optim.lr=fast"], ["'optim.lr'", "fast", "a number"]),
        (["train", "world=-4"], ["'world'", "at least 1"]),
        (["train", "world=2,4"], ["several values", "-m"]),
        (["train", "--hepl"], ["no flag '--hepl'", "--help"]),
        (["train", "world"], ["needs a value", "world=4"]),
        (["train", "comm.interface=eth77"], ["no network interface", "eth77", "lo"]),
        (["train", "comm.backend=mpi"], ["built without MPI", "comm.backend=gloo"]),
        (["train", "mode=one_shot", "comm.aggregate=least"], ["aggregates all edges", "mode=sar", "comm.aggregate=post"]),
        (["train", "comm.aggregate=least", "comm.rate=1GB"], ["comm.aggregate=fastest", "comm.rate=1GB"]),
        (["train", "comm.rate=10gbit"], ["comm.rate", "at least 1MB", "12GB"]),
        (["train", "mode.keep=all"], ["'mode.keep' belongs to mode=no_remat"]),
        (["train", "+mode.keep=all"], ["Only no_remat keeps", "mode=no_remat mode.keep=all"]),
        (["train", "mode=no_remat", "mode.keep=all"], ["no attention", "model=gat", "mode.keep=rows"]),
        (["train", "mode=no_remat", "mode.keep=some"], ["mode.keep", "rows, all"]),
        (["train", "comm.aggregate=most"], ["comm.aggregate", "post", "pre", "least"]),
        (["train", "experiment=cora_gta"], ["'experiment' has no option 'cora_gta'", "cora_gat"]),
        (["train", "-m", "world=2,4", "run_dir=x"], ["run folders"]),
        (["train", "model.aggregator=lstm"], ["An LSTM needs all neighbours", "mode=one_shot", "world=1", "aggregator=pool"]),
        (["train", "model=gin", "model.mlp_layers=0"], ["'model.mlp_layers'", "at least 1"]),
        (["train", "model=gat", "mode=domain_parallel", "kernel=fused"], ["'gat'", "use one_shot"]),
        (["prepare", "dataset=ogb_dri"], ["'dataset' has no option", "ogb_dir"]),
        (["partition", "partitioner=metsi"], ["'partitioner' has no option", "metis"]),
        (["partition", "dataset.num_nodes=5", "world=6"], ["world=6", "at most 5"]),
        (["compare", "nowhere"], ["no such run", "nowhere"]),
        (["compare"], ["no finished run"]),
        (["compare", "otu=x"], ["no setting 'otu'", "out"]),
        (["track"], ["sargnn track NAME"]),
        (["ui", "port=99999"], ["'port'", "65535"]),
        (["ui", "port=x"], ["'port'", "a whole number"]),
        (["clean", "what=everything"], ["'what'", "datasets"]),
        (["completion", "tcsh"], ["tcsh", "bash"]),
        (["info", "please"], ["please"]),
        (["train", "dataset=ogb_dir"], ["'dataset.root' must be given"]),
        (["train", "dataset=ogb_dir", "dataset.root=/nowhere"], ["not exist", "/nowhere"]),
        (["train", "dataset.num_nodes=5", "world=6"], ["world=6", "at most 5"]),
        (["train", "world=x=y"], ["world=x=y"]),
        (["train", "store_dir=/proc/none"], ["/proc/none"]),
        (["train", "resume='~nobody-of-this-name/run'"], ["no such run", "~nobody-of-this-name/run"]),
        (["train", f"resume={'x' * 300}"], ["name too long", "xxx"]),
        (["train", "--config-dir", "~nobody-of-this-name/conf"], ["--config-dir does not exist", "~nobody-of-this-name"]),
        (["train", "run_dir=/proc/none", "dataset.num_nodes=50", "world=1"], ["/proc/none", "run folder"]),
    ],
)
def test_mistakes_are_answered(sargnn: Sargnn, tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    done = sargnn(*arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 10, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_port_that_is_taken(sargnn: Sargnn) -> None:
    with socket.socket() as busy:
        busy.bind(("", 0))
        busy.listen()
        port = busy.getsockname()[1]
        done = sargnn("train", f"comm.port={port}")
    assert done.returncode == 1 and f"comm.port={port}" in done.stderr


@pytest.mark.parametrize("damage", ["truncated", "flipped", "half", "version"])
@pytest.mark.parametrize("kind", ["datasets", "partitions"])
def test_a_damaged_store_is_named_and_not_made_again(sargnn: Sargnn, tmp_path: Path, kind: str, damage: str) -> None:
    arguments = ["train", "debug=tiny", "run_dir=run"]
    assert sargnn("partition", "dataset.num_nodes=600", "world=2").returncode == 0
    (store,) = (tmp_path / "stores" / kind).iterdir()
    file = next(path for path in sorted(store.rglob("*.npy")) if path.stat().st_size > 300)
    manifest = store / "manifest.json"
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-8])
    elif damage == "flipped":
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(bytes(content))
        if kind == "datasets":  # it is read again only where a partition is made
            shutil.rmtree(tmp_path / "stores" / "partitions")
    elif damage == "half":
        manifest.unlink()
    else:
        manifest.write_text(manifest.read_text().replace('"version": 2', '"version": 99', 1))
    before = sorted(path.name for path in store.rglob("*"))
    done = sargnn(*arguments)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert store.name in done.stderr, done.stderr
    assert ("format version 99" if damage == "version" else "damaged") in done.stderr, done.stderr
    assert sorted(path.name for path in store.rglob("*")) == before
