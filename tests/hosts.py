"""Hosts of ``scripts/hosts.py`` in tests; skipped with the reason where none can be made."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from types import ModuleType
from typing import Any

import pytest

from tests.processes import ROOT

_NUMBERS = itertools.count()


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hosts_script", ROOT / "scripts" / "hosts.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


script: Any = _load()


def make_hosts(count: int, rate: str | None = None) -> Any:
    """Hosts for a ``with`` block."""
    if why := script.why_not():
        pytest.skip(why)
    return script.Hosts(count, rate, name=f"test{os.getpid()}x{next(_NUMBERS)}")
