"""What a setting decides, said in the metadata of its field, and read from there."""

from __future__ import annotations

import dataclasses
from typing import Any

from sargnn.resolve import describe_source, is_target

Metadata = dict[str, Any]

DECIDES = "decides"
LOSSES: Metadata = {DECIDES: "losses"}
"""The losses depend on it: a resumed run keeps it, and it is in ``config_hash``."""
RUN: Metadata = {DECIDES: "run"}
"""It tells runs apart that are compared: it may change when a run is resumed, but not between two submissions of one run."""
FREE: Metadata = {DECIDES: "nothing"}
"""It may change whenever a run is started or submitted again."""

ALWAYS_HASHED: Metadata = {"always": True}
"""In ``config_hash`` also at its default. Other settings are left out there: a new one leaves older hashes as they are."""


def only_when(name: str) -> Metadata:
    """The setting decides the losses only where this property of ``RunConfig`` is true; else it is of the kind ``RUN``."""
    return {"when": name}


def hashed_as(value: Any) -> Metadata:
    """It does not decide the losses, and ``config_hash`` holds this value in its place."""
    return {"hashed_as": value}


def find_deciding(settings: Any, run: Any, kind: str = "") -> dict[str, Any]:
    """The settings of a dataclass that decide the losses; those of a group in it as a mapping of their own, also where only one
    of its fields says that it does.

    A setting at its default is left out, so that a new one leaves older runs' hashes as they are. Of a target the name and the
    content of its file are given, not its path.

    Args:
        run: what has the properties that ``only_when`` names.
        kind: what a field decides that says nothing itself.
    """
    deciding: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value, says = getattr(settings, field.name), field.metadata
        if "hashed_as" in says:
            deciding[field.name] = says["hashed_as"]
        elif "when" in says and not getattr(run, says["when"]):
            continue
        elif dataclasses.is_dataclass(value):
            own = says.get(DECIDES, kind)
            inner = find_deciding(value, run, own)
            if inner or own == LOSSES[DECIDES]:
                deciding[field.name] = inner
        elif says.get(DECIDES, kind) != LOSSES[DECIDES]:
            continue
        elif says.get("always") or value != field.default:
            outside = says.get("target") and is_target(str(value))
            if outside and getattr(settings, "reads_target", False):  # what it makes is compared, not how it is written
                deciding[field.name] = str(value).rpartition(":")[2]
            else:
                deciding[field.name] = describe_source(value) if outside else value
    return deciding


def find_free(settings: Any) -> set[str]:
    """The dotted keys of settings that are ``FREE``, in a dataclass where every field says what it decides."""
    free: set[str] = set()
    for field in dataclasses.fields(settings):
        value, kind = getattr(settings, field.name), field.metadata[DECIDES]
        inner = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        kinds = {f"{field.name}.{each.name}": each.metadata.get(DECIDES, kind) for each in inner} or {field.name: kind}
        free |= {key for key, decides in kinds.items() if decides == FREE[DECIDES]}
    return free


def flat(mapping: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value, of a mapping of mappings."""
    flattened: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            flattened |= flat(value, f"{prefix}{key}.")
        else:
            flattened[f"{prefix}{key}"] = value
    return flattened


def as_mapping(settings: Any) -> dict[str, Any]:
    """A settings dataclass as a plain mapping, groups inside it likewise; without ``target`` where there is none."""
    mapping = dataclasses.asdict(settings)
    for group in (mapping, *(value for value in mapping.values() if isinstance(value, dict))):
        if group.get("target", "") is None:
            del group["target"]
    return mapping
