"""What a change of structure must leave as it is: before and after it.

    python scripts/frozen.py record before.json           # on the old code, some five minutes
    python scripts/frozen.py record after.json            # on the new code
    python scripts/frozen.py compare before.json after.json [--within 1e-12]

Recorded are 60 small runs of three or four workers and three epochs, with dropout: losses and every parameter to the last bit,
bytes sent, the keys of ``summary.json``; the peaks of four larger runs; manifests of stores; the texts of job scripts; pages
of help. ``compare`` lists what differs, and for numbers by how much. Its exit code is 1 if anything does: a peak by more than
2 %, with ``--within`` a loss or a parameter of an fp64 run by more than that part of its largest.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

MODELS = ("sage", "gat", "gcn", "gin", "appnp", "gcnii", "resgcn", "sgc")
MODES = ("sar", "no_remat", "one_shot", "domain_parallel")
COMMON = ["dataset.num_nodes=240", "epochs=3", "tracking=none", "seed=3"]
NARROW = {model: ["model.hidden=8"] for model in MODELS if model != "sgc"}
TYPED = ["dataset=mag_like", "dataset.scale=0.001", "epochs=3", "tracking=none", "model=rgcn", "model.hidden=8"]
LARGE = ["dataset.num_nodes=60000", "epochs=2", "tracking=none", "model.hidden=128", "world=2", "checkpoint.every=null"]
PEAKS = {
    f"{model} {mode}": [*LARGE, f"model={model}", f"mode={mode}"]
    for model, mode in (("sage", "sar"), ("sage", "no_remat"), ("gat", "sar"), ("gcn", "domain_parallel"))
}
PEAK_WITHIN = 0.02
JOBS = (
    ["run_name=job", "model=gat", "world=32", "slurm.partition=big", "slurm.time=60"],
    ["run_name=pair", "slurm.nodes=2", "world=4", "servers=2"],
    ["-m", "seed=0,1,2", "slurm.array=true", "slurm.array_parallelism=2"],
    ["experiment=papers100M_sage", "run_name=papers"],
)
VARIES = ("created", "partition_time_s", "git_sha", "versions")


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
        words = [f"model={model}", *NARROW[model], f"kernel={kernel}", "precision=fp64", "world=3"]
        chosen[f"{model} {kernel}"] = [*COMMON, *words]
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


@contextlib.contextmanager
def somewhere() -> Iterator[Path]:
    """In an empty folder."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield Path(folder)


def called(*words: str) -> str:
    """What ``sargnn`` with these words prints, 80 columns wide; it must succeed."""
    from sargnn.cli.main import main

    os.environ["COLUMNS"] = "80"
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = main(words)
    if code:
        raise SystemExit(f"{' '.join(words)}: {said.getvalue()}")
    return said.getvalue()


def trained(words: Sequence[str]) -> dict[str, Any]:
    """A run here; its summary."""
    called("train", *words, "run_dir=run")
    summary: dict[str, Any] = json.loads(Path("run/summary.json").read_text())
    return summary


def run_of(words: Sequence[str]) -> dict[str, Any]:
    """What a small run gives."""
    with somewhere():
        summary = trained(words)
        (last,) = sorted(Path("run/checkpoints").glob("epoch_*"))[-1:]
        parameters = {file.stem: np.load(file) for file in sorted((last / "param").glob("*.npy"))}
        manifests = {path.parts[1]: manifest_at(path) for path in Path("stores").glob("*/*/manifest.json")}
    return {
        "losses": summary["losses"],
        "bytes": summary["comm_bytes_per_epoch"],
        "keys": sorted(summary),
        "manifests": manifests,
        "parameters": {key: array.astype(np.float64).ravel().tolist() for key, array in parameters.items()},
    }


def manifest_at(path: Path) -> Any:
    """A store's manifest without its own checksum, which covers how long the store took."""
    content = json.loads(path.read_text())
    del content["sha256"]
    return stable(content)


def stable(content: Any) -> Any:
    """Without what differs from time to time."""
    if isinstance(content, dict):
        return {key: stable(value) for key, value in content.items() if key not in VARIES}
    return [stable(value) for value in content] if isinstance(content, list) else content


def peak_of(words: Sequence[str]) -> int:
    """The largest training peak of a run's workers."""
    with somewhere():
        return max(trained(words)["peak_train_bytes"])


def texts() -> dict[str, str]:
    """Job scripts and pages of help."""
    from sargnn.cli.verbs import VERBS

    found = {f"help {verb}": called(verb, "--help") for verb in VERBS} | {"help": called("--help")}
    for words in JOBS:
        with somewhere() as folder:
            called("slurm", *words)
            for path in sorted(Path("slurm").rglob("*")):
                if path.is_file():
                    found[f"slurm {' '.join(words)}: {path.name}"] = _without_places(path.read_text(), folder)
    return found


def _without_places(text: str, folder: Path) -> str:
    return re.sub(r"sweep-\w+|sweeps/\w+", "SWEEP", text.replace(str(folder.resolve()), "FOLDER").replace(sys.prefix, "PREFIX"))


def record(path: Path) -> None:
    """Write all that is frozen."""
    answers: dict[str, Any] = {"texts": texts(), "peaks": {name: peak_of(words) for name, words in PEAKS.items()}, "runs": {}}
    for name, words in runs().items():
        answers["runs"][name] = run_of(words)
        print(f"{name}: {answers['runs'][name]['losses'][-1]!r}", flush=True)
    path.write_text(json.dumps(answers))


def compare(before: Path, after: Path, within: float) -> int:
    """List what differs. Returns the exit code."""
    old, new = (json.loads(path.read_text()) for path in (before, after))
    wrong = [f"{name}: other text" for name in old["texts"].keys() | new["texts"].keys() if _differ(old, new, "texts", name)]
    for name, peak in old["peaks"].items():
        change = new["peaks"][name] / peak - 1
        print(f"{name}: peak {change:+.1%}")
        if abs(change) > PEAK_WITHIN:
            wrong.append(f"{name}: peak {change:+.1%}")
    same = 0
    for name in sorted(old["runs"].keys() | new["runs"].keys()):
        if name not in old["runs"] or name not in new["runs"]:
            wrong.append(f"{name}: only in {before if name in old['runs'] else after}")
            continue
        one, other = old["runs"][name], new["runs"][name]
        wrong += [f"{name}: other {key}" for key in ("bytes", "keys", "manifests") if one[key] != other[key]]
        if (one["losses"], one["parameters"]) == (other["losses"], other["parameters"]):
            same += 1
            continue
        apart = max(_apart(one["losses"], other["losses"]), *map(_apart, *_parameters(one, other)))
        line = f"{name}: {apart:.1e} apart"
        print(line)
        if apart > within and not (within and any(kind in name for kind in ("fp32", "bf16", "mixed"))):
            wrong.append(line)
    print(f"{same} of {len(old['runs'])} runs have the same bits")
    for line in wrong:
        print(line)
    return int(bool(wrong))


def _differ(old: dict[str, Any], new: dict[str, Any], what: str, name: str) -> bool:
    return bool(old[what].get(name) != new[what].get(name))


def _parameters(old: dict[str, Any], new: dict[str, Any]) -> tuple[list[Any], list[Any]]:
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
