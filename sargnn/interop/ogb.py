"""OGB's own judge of accuracy."""

from __future__ import annotations

import os
import sys

import numpy as np


def accuracy(dataset: str, labels: np.ndarray, predicted: np.ndarray) -> float:
    """The fraction of right classes, by OGB's ``Evaluator`` of this dataset, or of ogbn-products where OGB does not know it.

    Args:
        labels, predicted: int64 [N].
    """
    sys.modules.setdefault("outdated", None)  # type: ignore[arg-type]  # its check of versions can hold the process for long
    os.environ.setdefault("DGLBACKEND", "pytorch")  # ogb imports dgl where it is, which would write a file into the home folder
    from ogb.nodeproppred import Evaluator

    known = ("ogbn-products", "ogbn-papers100M", "ogbn-mag", "ogbn-arxiv")
    judge = Evaluator(dataset if dataset in known else "ogbn-products")
    return float(judge.eval({"y_true": labels[:, None], "y_pred": predicted[:, None]})["acc"])
