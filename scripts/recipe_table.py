"""What each part of the accuracy recipe brings: mean and spread over seeds, in one process (any world gives the same losses).

    python scripts/recipe_table.py 5 dataset=products_like dataset.scale=0.02 epochs=60 optim.schedule=cosine model.hidden=64
    python scripts/recipe_table.py 5 'cases=mlp;sage;sage, labels' dataset=papers_like

The first argument is the number of seeds, the others are overrides of ``sargnn train``; ``cases`` chooses rows of ``CASES``.
GAT has four heads that are together as wide as the other models. Prints a Markdown table of test accuracies after the last
epoch, and after Correct & Smooth on the same outputs.
"""

from __future__ import annotations

import sys
import time
from statistics import mean, stdev

import torch
from composed import config_of

from sargnn.comm.group import Group
from sargnn.config.run import RunConfig
from sargnn.graph.dataset import Dataset, open_dataset
from sargnn.partition.cut import cut
from sargnn.partition.order import order_nodes
from sargnn.partition.part import Part
from sargnn.sources.prepare import prepare_dataset
from sargnn.training.build import make_trainer

CASES = {
    "label propagation": ["model=label_propagation", "epochs=1"],
    "linear": ["model=linear"],
    "mlp": ["model=mlp"],
    "sage": ["model=sage"],
    "sage, labels": ["model=sage", "labels=masked"],
    "sage, labels, reuse 1": ["model=sage", "labels=masked", "labels.reuse=1"],
    "gat": ["model=gat"],
    "gat, labels": ["model=gat", "labels=masked"],
    "rgcn": ["model=rgcn"],
    "rgcn, labels": ["model=rgcn", "labels=masked"],
}
TYPED = [name for name in CASES if name.startswith("rgcn")]
HEADS = 4


def overrides_of(name: str, given: list[str], seed: int) -> list[str]:
    """Those of one run: models that have no hidden rows are not told of any."""
    rest = [one for one in given if not one.startswith("model.")]
    if name not in ("label propagation", "linear"):
        rest = list(given)
    changes = [*CASES[name], "smooth=cs", "world=1", f"seed={seed}"]
    if name.startswith("gat"):
        width = next((int(one.partition("=")[2]) for one in reversed(given) if one.startswith("model.hidden=")), 256)
        changes += [f"model.heads={HEADS}", f"model.hidden={width // HEADS}"]
    return [*rest, *changes]


def trained(config: RunConfig, dataset: Dataset, part: Part) -> tuple[float, float, float, float]:
    """Test accuracies after the last epoch, at best validation, after Correct & Smooth; the median epoch time."""
    trainer = make_trainer(config, part, dataset.num_classes, Group.single())
    history = trainer.run()
    trainer.smooth()
    found = history.scores["test"], history.test_at_best_val, history.smoothed["test"]
    times = sorted(history.epoch_times_s)
    return (*(one or 0.0 for one in found), times[len(times) // 2])  # type: ignore[return-value]


def main() -> None:
    """Train every case with every seed."""
    seeds, overrides = int(sys.argv[1]), [one for one in sys.argv[2:] if not one.startswith("cases=")]
    chosen = [one.partition("=")[2].split(";") for one in sys.argv[2:] if one.startswith("cases=")]
    names = [name for name in CASES if name not in TYPED] if not chosen else [name.strip() for name in chosen[0]]
    torch.set_num_threads(2)
    base = config_of(overrides_of(names[0], overrides, 0))
    dataset = open_dataset(prepare_dataset(base.dataset, base.store_dir), verify=True)
    (part,) = cut(dataset, *order_nodes(dataset, torch.zeros(dataset.num_nodes, dtype=torch.int32).numpy(), 1, "locality"))
    print("| | test, last epoch | at best validation | after C&S | epoch s |\n|---|---|---|---|---|")
    for name in names:
        started, rows = time.perf_counter(), []
        for seed in range(1 if name == "label propagation" else seeds):
            rows.append(trained(config_of(overrides_of(name, overrides, seed)), dataset, part))
        shown = [f"{mean(one):.4f} +- {stdev(one) if len(one) > 1 else 0.0:.4f}" for one in list(zip(*rows, strict=True))[:3]]
        print(f"| {name} | {' | '.join(shown)} | {mean(row[3] for row in rows):.2f} |", flush=True)
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
