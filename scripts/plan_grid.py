"""Planned memory beside measured, as a Markdown table for docs/RESULTS.md.

    .venv/bin/python scripts/plan_grid.py STORES [SETTING ...]

trains GraphSage, GAT and R-GCN for two epochs in each mode with 1, 2 and 4 workers, and one configuration each in bf16 and with
kept layers; further settings (``dataset.scale=0.08``) are those of all runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from sargnn.cli.compose import compose_verb
from sargnn.config import parse
from sargnn.data.dataset import open_dataset
from sargnn.data.prepare import prepare_dataset
from sargnn.launch.runtime import measured_runtime
from sargnn.planner.worlds import find_cut, plan_run

_MODES = ("sar", "no_remat", "one_shot", "domain_parallel")
_GRAPHS = {"sage": "products_like", "gat": "products_like", "rgcn": "mag_like"}
_MORE = (
    ("sage", "sar", 4, "precision=bf16"), ("gat", "sar", 4, "precision=bf16"), ("gat", "sar", 4, "engine.keep_layers=2"),
    ("sage", "sar", 4, "comm.aggregate=post"), ("gat", "no_remat", 4, "comm.prefetch_depth=2"),
    ("gcn", "sar", 4, "model.hidden=128"),
)  # fmt: skip


def main() -> int:
    """The command line; an exit code."""
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    stores, settings = str(Path(sys.argv[1]).resolve()), sys.argv[2:]
    runs = [(model, mode, world, "") for model in _GRAPHS for mode in _MODES for world in (1, 2, 4)]
    trained, whole = [], []
    for model, mode, world, more in [*runs, *_MORE]:
        dataset = _GRAPHS.get(model, "products_like")
        words = [
            f"dataset={dataset}", *settings, f"model={model}", f"mode={mode}", f"world={world}", "epochs=2", "eval_every=10",
            "tracking=none", f"store_dir={stores}", *([more] if more else []),
        ]  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["sargnn", "train", *words, f"run_dir={folder}/run"], check=True, capture_output=True)
            summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
        config = parse(compose_verb("train", words))
        path = prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes)
        graph = open_dataset(path, verify=False)
        runtime = measured_runtime(config, typed=graph.schema.typed)
        plan = plan_run(config, graph, find_cut(config, graph, path.name), runtime)
        training = [one.training / is_ for one, is_ in zip(plan.workers, summary["peak_train_bytes"], strict=True)]
        resident = [one.total / is_ for one, is_ in zip(plan.workers, summary["peak_rss_bytes"], strict=True)]
        trained += [_worst(training)]
        whole += [_worst(resident)]
        cells = [
            model, mode, f"{world}", more, f"{max(summary['peak_train_bytes']) / 1e6:.0f}", f"{_worst(training):.3f}",
            f"{max(summary['peak_rss_bytes']) / 1e6:.0f}", f"{_worst(resident):.3f}", plan.largest.phase,
        ]  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)
    for name, found in (("training", trained), ("whole", whole)):
        errors = [abs(one - 1) for one in found]
        print(f"{name}: mean absolute error {sum(errors) / len(errors):.3f}, worst {max(errors):.3f}")
    return 0


def _worst(ratios: list[float]) -> float:
    """Of the workers that which is furthest from what was planned."""
    return max(ratios, key=lambda one: abs(one - 1))


if __name__ == "__main__":
    sys.exit(main())
