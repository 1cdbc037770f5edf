"""What a tensor's first dimension runs over, noted on the tensor itself, and where in the user's file a call stands.

A tensor without a note is the same on all workers: parameters, and what is made of them.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

_ROWS, _SHARED, _CONSTANT = "_sargnn_rows", "_sargnn_shared", "_sargnn_constant"
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = (_OWN, os.path.dirname(os.path.abspath(torch.__file__)))


@dataclass(frozen=True)
class Rows:
    """Which rows.

    Attributes:
        kind: of nodes, or of edges.
        type: the node type, or the relation.
        level: of nodes: the layer that reads them, with the last layer's outputs one further; of edges: their layer.
    """

    kind: Literal["nodes", "edges"]
    type: int = 0
    level: int = 0


def tagged(tensor: Tensor, rows: Rows | None, *, shared: bool = False) -> Tensor:
    """``tensor`` itself, with a note of what its rows are.

    Args:
        shared: others read the same memory, so that nobody may write to it.
    """
    if rows is not None:
        setattr(tensor, _ROWS, rows)
        setattr(tensor, _SHARED, shared)
    return tensor


def rows_of(tensor: Any) -> Rows | None:
    """What the rows are; None where they are none of a graph's."""
    return getattr(tensor, _ROWS, None)


def is_shared(tensor: Any) -> bool:
    """Whether nobody may write to it."""
    return bool(getattr(tensor, _SHARED, False))


def share(tensor: Tensor) -> None:
    """Note that others read the same memory."""
    setattr(tensor, _SHARED, True)


def constant(tensor: Tensor) -> Tensor:
    """``tensor`` itself, noted to hold the same values in every epoch."""
    setattr(tensor, _CONSTANT, tensor._version)
    return tensor


def is_constant(tensor: Tensor) -> bool:
    """Whether it holds the same values in every epoch."""
    return getattr(tensor, _CONSTANT, None) == tensor._version


def user_line(path: str | None = None) -> str:
    """``FILE line N`` of the innermost call in the user's file.

    Args:
        path: that file; the innermost file that is not of this package, PyTorch or DGL if not given, or not there.
    """
    innermost = None
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if path is not None and name == path:
            return f"{name} line {frame.f_lineno}"
        if innermost is None and not is_library(name):
            innermost = f"{name} line {frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return innermost or "unknown place"


def is_own_call() -> bool:
    """Whether code of this package, not the user's or a library's layer, has called the PyTorch function under way."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(("<", _LIBRARIES[1])):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and frame.f_code.co_filename.startswith(_OWN)


def is_library(name: str) -> bool:
    """Whether a file of this name is of this package, PyTorch or DGL, so that no line of it is the user's."""
    return name.startswith(("<", *_LIBRARIES)) or f"{os.sep}dgl{os.sep}" in name or "contextlib" in name
