"""What the settings' dataclasses say of a key: whether it is there, and the values that it may have."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sargnn.cli.conf_folders import ConfFolders
from sargnn.errors import SargnnError

_CLASSES = {
    "train": "sargnn.config.run:RunConfig",
    "slurm": "sargnn.config.run:RunConfig",
    "plan": "sargnn.config.run:RunConfig",
    "bench_epoch": "sargnn.config.run:RunConfig",
    "bench_network": "sargnn.config.run:RunConfig",
    "prepare": "sargnn.config.verbs:PrepareConfig",
    "check": "sargnn.config.verbs:CheckConfig",
    "partition_compare": "sargnn.config.run:RunConfig",
    "partition": "sargnn.config.verbs:PartitionConfig",
    "export_ogb": "sargnn.config.verbs:ExportConfig",
    "bench_kernels": "sargnn.bench.settings:BenchKernelsConfig",
}
"""A primary file's settings. (Those of ``bench table`` and ``bench plan`` are a table's and a run's together.)"""


def settings_class(config: str, group: str | None, words: Iterable[str], folders: ConfFolders) -> Any:
    """The dataclass of a verb's settings, or of the option of a group that ``words`` choose.

    Returns:
        None: there is none, or it is a user's own, which is not loaded for that.
    """
    from sargnn.resolve import load_attribute

    if config not in _CLASSES:
        return None
    top = load_attribute(_CLASSES[config])
    if group is None:
        return top
    if group == "slurm":
        return load_attribute("sargnn.launch.slurm:SlurmConfig")
    field = top.__dataclass_fields__.get(group)
    if field is None:
        return None
    if "table" not in field.metadata:
        hint = _plain(get_type_hints(top)[group])
        return hint if dataclasses.is_dataclass(hint) else None
    try:
        option = folders.choice(config, words).options.get(group, "")
        settings = folders.settings_of(group, option)
    except SargnnError:
        return None
    name = settings[f"{group}.name"].value if f"{group}.name" in settings else ""
    table: dict[str, str] = load_attribute(field.metadata["table"])
    known = load_attribute(table[name]) if name in table else None
    own = f"{group}.target" in settings and not getattr(known, "reads_target", None)
    return None if own else known


def allowed_values(config: str, key: str, words: Iterable[str], folders: ConfFolders) -> list[str]:
    """The values that a setting may have, where they are few; else none.

    Args:
        words: the other words of the command line.
    """
    group, _, name = key.rpartition(".")
    settings_type = settings_class(config, group or None, words, folders)
    field = settings_type.__dataclass_fields__.get(name) if settings_type is not None else None
    if field is None:
        return []
    hint = get_type_hints(settings_type)[name]
    optional = ["null"] if type(None) in get_args(hint) else []
    if names := field.metadata.get("one_of"):
        return [*names, *optional]
    plain = _plain(hint)
    if plain is bool:
        return ["true", "false", *optional]
    if get_origin(plain) is not Literal:
        return []
    return [str(literal).lower() if isinstance(literal, bool) else str(literal) for literal in get_args(plain)] + optional


def _plain(hint: Any) -> Any:
    """The type without ``None``."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(option for option in get_args(hint) if option is not type(None))
    return hint
