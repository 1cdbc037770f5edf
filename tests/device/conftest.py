"""Kernels in Triton run in Triton's interpreter."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
