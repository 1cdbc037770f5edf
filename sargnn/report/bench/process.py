"""One training of stock DGL or PyG: ``python -m sargnn.report.bench.process CONFIG STORE THREADS [FORM]``.

FORM is one of ``FORMS``, and then it is PyG. PyTorch's Adam; the graph's formats are made beforehand, and the memory baseline
is taken once graph, features and parameters are read in, by the meter that workers use. Prints one JSON object: ``times_s`` of
every epoch, ``losses``, ``peak_train_bytes``; or ``out_of_memory`` where an allocation failed. THP_MEM_ALLOC_ENABLE=1 turns
huge pages on.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sargnn.backends.device import device_of
from sargnn.config.run import RunConfig, load
from sargnn.errors import SargnnError
from sargnn.graph.dataset import Dataset, open_dataset
from sargnn.interop.dgl import import_dgl
from sargnn.report.bench.settings import DGL_MODELS, PYG_MODELS, SAMPLED_MODELS
from sargnn.report.bench.stock import StockNetwork
from sargnn.resolve import resolve
from sargnn.tracking.memory import PeakMeter


def measure(config: RunConfig, store: Path, threads: int, form: str | None) -> dict[str, Any]:
    """``form``: what PyG is given as the graph; None: it is DGL."""
    torch.set_num_threads(threads)
    torch.manual_seed(config.seed)
    models = PYG_MODELS if form is not None else SAMPLED_MODELS if config.draws_flows else DGL_MODELS
    build: Callable[[RunConfig, Dataset, Any], StockNetwork] = resolve("stock model", models, config.model.name)
    network = build(config, open_dataset(store, verify=False), form or import_dgl())
    if config.precision == "bf16":
        network.to_bf16()
    device = device_of(config.device)
    network.place(device.device)
    optimizer = torch.optim.Adam(network.parameters(), lr=config.optim.lr, weight_decay=config.optim.weight_decay)
    meter = PeakMeter.here(device)
    times, losses, peak = [], [], 0
    for _ in range(config.epochs):
        meter.begin()
        started = time.perf_counter()
        losses.append(network.train_epoch(optimizer))
        times.append(time.perf_counter() - started)
        peak = max(peak, meter.end())
    return {"times_s": times, "losses": losses, "peak_train_bytes": peak}


if __name__ == "__main__":
    try:
        chosen = sys.argv[4] if len(sys.argv) > 4 else None
        print(json.dumps(measure(load(Path(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3]), chosen)))
    except SargnnError as error:
        sys.exit(str(error))
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        print(json.dumps({"out_of_memory": str(error)}))
