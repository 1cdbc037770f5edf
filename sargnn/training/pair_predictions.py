"""What ``sargnn predict`` writes of a run of ``task=links`` or ``task=edges``.

| file | |
|---|---|
| ``embeddings.npy`` | [nodes, F], in the order of original ids; of edges if asked for |
| ``pair_scores.npy`` | [P], of edges [P, C], of the pairs of ``pairs=FILE``, in their order |
| ``predictions.npy``, ``logits.npy`` | of edges: as those of nodes, in the order in which edges were given, by relation |
| ``partners.npy`` | int64 [nodes of the relation's source type, K], the best partners, best first; -1: there are no more |
| ``partner_scores.npy`` | [the same], their scores |

Numbers are within node types. Letters: N own rows, F width of an embedding, P pairs of the file, K partners, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sargnn.graph.schema import Schema
from sargnn.sources.links import read_pairs, relation_of
from sargnn.tasks.edges import EdgeTask
from sargnn.tasks.kinds import EMBEDDINGS, LOGITS, PREDICTIONS
from sargnn.tasks.links import LinkTask
from sargnn.tasks.pairs import PairTask

SCORES, PARTNERS, PARTNER_SCORES = "pair_scores.npy", "partners.npy", "partner_scores.npy"
_PAIRS = 1 << 18
"""That a worker asks for at a time."""

Write = Callable[[str, Tensor, np.ndarray], None]
"""Writes a table by its name, from the rows of it that this worker has, and which these are; all workers call it together."""


def write_pairs(task: PairTask, outputs: Tensor, schema: Schema, ids: np.ndarray, asked: dict[str, Any], write: Write) -> None:
    """Write what was asked for; all workers must call it together.

    Args:
        outputs: [N, F].
        ids: int64 [N], original ids.
        asked: ``embeddings``, whether they are wanted of edges, too; ``pairs``, a file; ``top``, K; ``relation``, its name;
            None or 0 for what is not wanted.
    """
    if asked["embeddings"] or isinstance(task, LinkTask):
        write(EMBEDDINGS, outputs, ids)
    if isinstance(task, EdgeTask):
        logits = task.logits(outputs, np.arange(len(task.numbers)))
        write(LOGITS, logits, task.numbers)
        write(PREDICTIONS, task.kind.predictions(logits), task.numbers)
    if not (asked["pairs"] or asked["top"]):
        return
    number = relation_of(schema, asked["relation"])
    relation = schema.relations[number]
    begins = [schema.offsets[end] for end in (relation.source, relation.destination)]
    group = task.group
    if asked["pairs"]:
        pairs = read_pairs(Path(asked["pairs"]))
        first, last = (pairs.shape[1] * (group.rank + k) // group.world for k in (0, 1))
        most = -(-pairs.shape[1] // group.world)
        scores = []
        for at in range(first, first + max(most, 1), _PAIRS):
            heads, tails = (pairs[end, at : min(at + _PAIRS, last)] + begins[end] for end in (0, 1))
            scores.append(task.score(outputs, heads, tails, number))
        write(SCORES, torch.cat(scores), np.arange(first, last))
    if asked["top"] and isinstance(task, LinkTask):
        partners, best = task.partners(outputs, int(asked["top"]), number)
        own = ids[(ids >= begins[0]) & (ids < schema.offsets[relation.source + 1])] - begins[0]
        partners = torch.where(partners >= 0, partners - begins[1], partners)
        write(PARTNERS, partners, own)
        write(PARTNER_SCORES, best, own)
