"""Losses and parameters of 60 small runs, to the last bit: before and after a change that should not change any.

python scripts/same_bits.py record before.json           # on the old code
python scripts/same_bits.py record after.json            # on the new code
python scripts/same_bits.py compare before.json after.json [--within 1e-12]

A recorded run has three or four workers and three epochs, with dropout. ``compare`` lists the runs whose bits differ, and by
how much. Its exit code is 1 if any does; with ``--within`` only if an fp64 run differs by more than that part of its largest.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np

MODELS = ("sage", "gat", "gcn", "gin", "appnp", "gcnii", "resgcn", "sgc")
MODES = ("sar", "no_remat", "one_shot", "domain_parallel")
COMMON = ["dataset.num_nodes=240", "epochs=3", "tracking=none", "seed=3"]
NARROW = {model: ["model.hidden=8"] for model in MODELS if model != "sgc"}
TYPED = ["dataset=mag_like", "dataset.scale=0.001", "epochs=3", "tracking=none", "model=rgcn", "model.hidden=8"]


def runs() -> dict[str, list[str]]:
    """Name -> what ``sargnn train`` gets."""
    chosen = {}
    for number, (model, mode) in enumerate(product(MODELS, MODES)):
        precision = "fp64" if number % 2 else "fp32"
        words = [f"model={model}", *NARROW.get(model, []), f"mode={mode}", f"precision={precision}", "world=3"]
        chosen[f"{model} {mode} {precision}"] = [*COMMON, *words]
    for precision, model in product(("bf16", "mixed"), ("sage", "gat", "gcn")):
        chosen[f"{model} {precision}"] = [*COMMON, f"model={model}", *NARROW[model], f"precision={precision}", "world=3"]
    for kernel, model in product(("reference", "dgl"), ("sage", "gat")):
        chosen[f"{model} {kernel}"] = [
            *COMMON,
            f"model={model}",
            *NARROW[model],
            f"kernel={kernel}",
            "precision=fp64",
            "world=3",
        ]
    for mode in MODES:
        chosen[f"rgcn {mode}"] = [*TYPED, f"mode={mode}", "precision=fp64", "world=3"]
    views = {
        "flows": ["mfg=true"],
        "micro-batches": ["batches.count=2", "model.norm=layer"],
        "steps": ["batches.steps=2"],
        "samples": ["sample.fanouts=[3,3,3]"],
        "labels": ["labels=masked"],
        "smoothed": ["smooth=cs"],
        "partial results": ["comm.aggregate=least"],
    }
    for (name, settings), model in product(views.items(), ("sage", "gat")):
        chosen[f"{model} {name}"] = [*COMMON, f"model={model}", *NARROW[model], "precision=fp64", "world=4", *settings]
    return chosen


def record(path: Path) -> None:
    """Run all, and write what each gave: losses and every parameter."""
    from sargnn.cli.main import main

    answers = {}
    for name, words in runs().items():
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),
            contextlib.redirect_stdout(io.StringIO()) as said,
        ):
            code = main(["train", *words, "run_dir=run"])
            if code:
                raise SystemExit(f"{name}: {said.getvalue()}")
            summary = json.loads(Path("run/summary.json").read_text())
            (last,) = sorted(Path("run/checkpoints").glob("epoch_*"))[-1:]
            parameters = {file.stem: np.load(file) for file in sorted((last / "param").glob("*.npy"))}
        answers[name] = {
            "losses": summary["losses"],
            "bytes": summary["comm_bytes_per_epoch"],
            "parameters": {key: array.astype(np.float64).ravel().tolist() for key, array in parameters.items()},
        }
        print(f"{name}: {answers[name]['losses'][-1]!r}", flush=True)
    path.write_text(json.dumps(answers))


def compare(before: Path, after: Path, within: float) -> int:
    """List what differs. Returns the exit code."""
    old, new = (json.loads(path.read_text()) for path in (before, after))
    beyond, same = 0, 0
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            print(f"{name}: only in {before if name in old else after}")
            beyond += 1
        elif old[name] == new[name]:
            same += 1
        else:
            apart = max(_apart(old[name]["losses"], new[name]["losses"]), *map(_apart, *_parameters(old[name], new[name])))
            exact = not any(kind in name for kind in ("fp32", "bf16", "mixed"))
            beyond += apart > within and (exact or not within)
            print(f"{name}: {apart:.1e} apart{'' if old[name]['bytes'] == new[name]['bytes'] else ', other bytes sent'}")
    print(f"{same} of {len(old)} runs have the same bits")
    return int(beyond > 0)


def _parameters(old: dict, new: dict) -> tuple[list, list]:
    return [old["parameters"][key] for key in old["parameters"]], [new["parameters"][key] for key in old["parameters"]]


def _apart(old: list[float], new: list[float]) -> float:
    first, second = np.array(old), np.array(new)
    return float(np.abs(first - second).max() / max(np.abs(first).max(), 1e-300)) if first.size else 0.0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record").add_argument("path", type=Path)
    pair = commands.add_parser("compare")
    pair.add_argument("before", type=Path)
    pair.add_argument("after", type=Path)
    pair.add_argument("--within", type=float, default=0.0)
    given = parser.parse_args()
    if given.command == "record":
        record(given.path.absolute())
        return 0
    return compare(given.before, given.after, given.within)


if __name__ == "__main__":
    sys.exit(main())
