"""Compiles the package's C++ when it is installed, editable or not, and when its wheel is made (``sargnn/native/build.py``)."""

from __future__ import annotations

import importlib.util
import platform
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def _builder() -> ModuleType:
    """The module by its path: the package itself imports what is not installed yet."""
    spec = importlib.util.spec_from_file_location("build", Path(__file__).parent.parent / "sargnn" / "native" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["build"] = module
    spec.loader.exec_module(module)
    return module


class CompiledCode(BuildHookInterface[Any]):
    def dependencies(self) -> list[str]:
        """A compiler from PyPI, where the machine has none."""
        return _builder().requirements() if self.target_name == "wheel" else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        builder = _builder()
        names = builder.names_here()
        try:
            if version == "standard":
                compiler = builder.build(names)
                # It goes with every Python; what zig links, with every glibc since 2012.
                system = "manylinux_2_17" if compiler.zig else "linux"
                build_data |= {"pure_python": False, "tag": f"py3-none-{system}_{platform.machine()}"}
            elif not names or not all(map(builder.is_built, names)):
                builder.build(names)
        except builder.BuildError as error:
            self.app.abort(str(error))
