"""OGB's own judge of predictions."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np


def accuracy(dataset: str, labels: np.ndarray, predicted: np.ndarray) -> float:
    """The share of right classes, of int64 [N] each, by OGB's ``Evaluator`` of this dataset, or of ogbn-products where OGB does
    not know it.
    """
    known = ("ogbn-products", "ogbn-papers100M", "ogbn-mag", "ogbn-arxiv")
    judge = _evaluator(dataset if dataset in known else "ogbn-products")
    return float(judge.eval({"y_true": labels[:, None], "y_pred": predicted[:, None]})["acc"])


def rocauc(labels: np.ndarray, scores: np.ndarray) -> float | None:
    """ROC-AUC of scores [N, C], the mean over labels, int8 [N, C], -1 where not known, by OGB's ``Evaluator`` of ogbn-proteins;
    None where no label is both true and false.
    """
    if not ((labels == 1).any(0) & (labels == 0).any(0)).any():
        return None
    known = np.where(labels < 0, np.nan, labels)  # OGB leaves out what is not equal to itself
    judge = _evaluator("ogbn-proteins")
    judge.num_tasks = labels.shape[1]  # else that dataset's 112 labels
    return float(judge.eval({"y_true": known, "y_pred": scores})["rocauc"])


def _evaluator(dataset: str) -> Any:
    sys.modules.setdefault("outdated", None)  # type: ignore[arg-type]  # its check of versions can hold the process for long
    os.environ.setdefault("DGLBACKEND", "pytorch")  # ogb imports dgl where it is, which would write a file into the home folder
    from ogb.nodeproppred import Evaluator

    return Evaluator(dataset)
