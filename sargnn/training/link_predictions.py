"""What ``sargnn predict`` writes of a run of ``task=links``: embeddings, scores of pairs, each node's best partners.

| file | |
|---|---|
| ``embeddings.npy`` | [nodes, F], in the order of original ids |
| ``pair_scores.npy`` | [P], of the pairs of ``pairs=FILE``, in their order |
| ``partners.npy`` | int64 [nodes of the relation's source type, K], the best partners, best first; -1: there are no more |
| ``partner_scores.npy`` | [the same], their scores |

Numbers are within node types. Letters: N own rows, F width of an embedding, P pairs of the file, K partners, W workers.
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
from sargnn.tasks.kinds import EMBEDDINGS
from sargnn.tasks.links import LinkTask

SCORES, PARTNERS, PARTNER_SCORES = "pair_scores.npy", "partners.npy", "partner_scores.npy"
_PAIRS = 1 << 18
"""That a worker asks for at a time."""

Write = Callable[[str, Tensor, np.ndarray], None]
"""Writes a table by its name, from the rows of it that this worker has, and which these are; all workers call it together."""


def write_links(task: LinkTask, outputs: Tensor, schema: Schema, ids: np.ndarray, asked: dict[str, Any], write: Write) -> None:
    """Write what was asked for; all workers must call it together.

    Args:
        outputs: [N, F].
        ids: int64 [N], original ids.
        asked: ``pairs``, a file; ``top``, K; ``relation``, its name; None or 0 for what is not wanted.
    """
    write(EMBEDDINGS, outputs, ids)
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
    if asked["top"]:
        partners, best = task.partners(outputs, int(asked["top"]), number)
        own = ids[(ids >= begins[0]) & (ids < schema.offsets[relation.source + 1])] - begins[0]
        partners = torch.where(partners >= 0, partners - begins[1], partners)
        write(PARTNERS, partners, own)
        write(PARTNER_SCORES, best, own)
