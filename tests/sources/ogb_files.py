"""OGB's raw layout: its packed tables, and what is read from them."""

from __future__ import annotations

import functools
import gzip
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from sargnn.graph.dataset import Dataset, Reader
from sargnn.sources.ogb.named import ogb_dir
from sargnn.sources.settings import OgbDirConfig
from tests.sources.stores import write_and_read


def write_gz(path: Path, text: str) -> None:
    """Write a packed table, and the folders that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.write(text)


def reader_of(folder: Path, inverse: bool = False, normalize: bool = False) -> Reader:
    """The reader of a folder in the raw layout."""
    config = OgbDirConfig("ogb_dir", str(folder), add_inverse_edges=inverse, normalize_features=normalize, add_self_loops=None)
    return ogb_dir(config)


def read(folder: Path, inverse: bool = False, normalize: bool = False) -> Dataset:
    """What the reader makes of the folder."""
    return write_and_read(reader_of(folder, inverse, normalize))


def judge(dataset: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """OGB's evaluator for pairs."""
    monkeypatch.setitem(sys.modules, "outdated", None)  # its check of versions can hold the process for long
    monkeypatch.setenv("DGLBACKEND", "pytorch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its imports
        from ogb.linkproppred import Evaluator

        return Evaluator(dataset)


def ogbs_own(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], dict[str, Any]]:
    """The graph and the split of a dataset of links, as OGB's own class reads them from a folder."""
    sys.modules.setdefault("outdated", None)  # type: ignore[arg-type]
    from ogb.linkproppred import LinkPropPredDataset

    monkeypatch.setattr(torch, "load", functools.partial(torch.load, weights_only=False))
    theirs = LinkPropPredDataset(name=name, root=str(folder))
    return theirs[0], theirs.get_edge_split()
