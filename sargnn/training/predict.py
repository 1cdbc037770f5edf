"""Predictions for all nodes, written in the order of original ids.

Letters: N own rows of the labelled type, C outputs, F features.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sargnn.comm.collectives import gather_table
from sargnn.tasks.kinds import EMBEDDINGS, LOGITS, SMOOTHED
from sargnn.training.trainer import Trainer

MANIFEST = "predictions.json"


def write_predictions(trainer: Trainer, folder: Path, *, embeddings: bool) -> dict[str, Any]:
    """Write predictions of the labelled type's nodes; all ranks must call it, rank 0 writes.

    | file | |
    |---|---|
    | ``predictions.npy`` | classes: int64 [nodes], after Correct & Smooth where that is configured |
    | | multilabel: uint8 [nodes, C], 1 where the logit is above 0; regression: [nodes, C], the values, equal to the logits |
    | ``logits.npy`` | [nodes, C], as the model gives them |
    | ``smoothed.npy`` | [nodes, C], scores after Correct & Smooth, where that is configured |
    | ``embeddings.npy`` | [nodes, F], what the last layer reads, if asked for |

    Returns:
        What was written, for the manifest.
    """
    part, graph = trainer.graph.part, trainer.graph
    offset = part.schema.offsets[graph.labelled]
    rows_of_whole = np.asarray(part.node_ids[graph.labelled_rows]) - offset
    files = []

    def write(name: str, rows: Tensor) -> None:
        temporary = folder / f".{name}.tmp"

        def create(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
            return np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)

        gather_table(trainer.engine.group, rows, rows_of_whole, create, "writing predictions")
        if trainer.engine.group.rank == 0:
            temporary.replace(folder / name)
            files.append(name)

    logits = trainer.evaluator.predictions()
    write(LOGITS, logits)
    if trainer.config.smooth.name != "none":
        logits = trainer.evaluator.smoothed(logits)
        write(SMOOTHED, logits)
    for name, table in trainer.task.tables(logits).items():
        write(f"{name}.npy", table)
    del logits
    if embeddings:
        write(EMBEDDINGS, trainer.evaluator.predictions(hidden=True))
    return {"node_type": part.schema.node_types[graph.labelled], "nodes": part.schema.count(graph.labelled), "files": files}
