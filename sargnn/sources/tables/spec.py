"""What the YAML file of ``dataset=tables`` says.

    nodes:
      user:
        files: users/*.parquet         # or a folder, a list of both, or an address such as s3://bucket/users
        id: user_id
        features: [age, country]       # or {age: standard, country: category}
        label: segment                 # or a list of columns
        split: part                    # texts train, valid, test; or dataset.split, dataset.split_by
    edges:
      user buys item:                  # type of the sources, relation, type of the destinations
        files: purchases/
        source: user_id
        destination: item_id
        weight: amount
        features: [at]
        label: returned
        split: part

A graph of one type and one relation names their tables directly below ``nodes`` and ``edges``. A type that has no table has
the ids that its edges name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml

from sargnn.config.fields import brief, build
from sargnn.errors import ConfigError, DataError
from sargnn.sources.own.edges import Triplet

Kind = Literal["number", "standard", "list", "category"]
"""How a column becomes features (``columns``)."""

ONLY = "node"
"""The type of the nodes of a graph that names no types."""
ONLY_RELATION: Triplet = (ONLY, "edge", ONLY)


@dataclass(frozen=True, kw_only=True)
class _TableEntry:
    """What tables of nodes and of edges say alike.

    Attributes:
        files: paths, folders, patterns or addresses.
        features: column -> how it becomes features; None: as its type says.
        label: empty: nothing is to be predicted.
    """

    ENDS: ClassVar[tuple[str, ...]]
    """The entries that name columns of ids."""
    files: list[str]
    features: dict[str, Kind | None] = field(default_factory=dict)
    label: list[str] = field(default_factory=list)
    split: str | None = None

    @property
    def ends(self) -> tuple[str, ...]:
        return tuple(getattr(self, name) for name in self.ENDS)


@dataclass(frozen=True, kw_only=True)
class NodeTable(_TableEntry):
    """The table of a type's nodes. id: the column of their ids."""

    ENDS = ("id",)
    id: str


@dataclass(frozen=True, kw_only=True)
class EdgeTable(_TableEntry):
    """``source``, ``destination``: the columns of the ids of an edge's ends."""

    ENDS = ("source", "destination")
    source: str
    destination: str
    weight: str | None = None


@dataclass(frozen=True)
class TablesSpec:
    """The YAML file's content, by type and by relation."""

    nodes: Mapping[str, NodeTable]
    edges: Mapping[Triplet, EdgeTable]


def read_spec(path: Path) -> TablesSpec:
    """Raises ``DataError`` with file and entry: it cannot be read, or says something else."""
    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        hint = "dataset.root=FILE.yaml names the file that lists the tables (docs/howto/own-tables.md)"
        raise DataError("There is no such file of tables.", given=str(path), hint=hint) from error
    except IsADirectoryError as error:
        raise DataError(
            "This is a folder; a YAML file lists the tables.", given=str(path), hint=f"{path}/graph.yaml"
        ) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DataError(f"'{path}' cannot be read: {' '.join(str(error).split())}") from error
    try:
        return _spec_of(content)
    except ConfigError as error:
        raise DataError(f"{error}\n  from:    {path}") from error


def _spec_of(content: Any) -> TablesSpec:
    if not isinstance(content, dict) or "edges" not in content:
        raise ConfigError("A graph of tables has 'edges', and 'nodes' where these have columns.", given=brief(content))
    if unknown := [key for key in content if key not in ("nodes", "edges")]:
        raise ConfigError(f"There is no entry '{unknown[0]}' in a file of tables.", allowed="nodes, edges")
    nodes, edges = content.get("nodes") or {}, content["edges"]
    for name, given in (("nodes", nodes), ("edges", edges)):
        if not isinstance(given, dict):
            raise ConfigError(f"'{name}' must be a mapping.", given=brief(given), allowed="columns by name, or tables by type")
    if "files" in edges:
        if nodes and "files" not in nodes:
            raise ConfigError(
                "'nodes' has types and 'edges' has none.",
                given=", ".join(map(str, nodes)),
                hint="'edges' by SOURCE RELATION DESTINATION, such as user buys item",
            )
        tables = {ONLY: _build(NodeTable, nodes, "nodes.")} if nodes else {}
        return TablesSpec(tables, {ONLY_RELATION: _build(EdgeTable, edges, "edges.")})
    if "files" in nodes:
        raise ConfigError("'edges' has types and 'nodes' has none.", hint="'nodes' by type")
    if not edges:
        raise ConfigError("'edges' names no table.", allowed="files, source, destination")
    relations: dict[Triplet, EdgeTable] = {}
    for name, table in edges.items():
        words = str(name).split()
        if len(words) != 3:
            raise ConfigError(
                "A table of edges does not say which types it joins.",
                given=str(name),
                allowed="SOURCE RELATION DESTINATION, such as user buys item",
                hint="files, source and destination directly below edges where there is one type" if len(words) < 2 else None,
            )
        relations[(words[0], words[1], words[2])] = _build(EdgeTable, table, f"edges.{name}.")
    joined = sorted({end for triplet in relations for end in (triplet[0], triplet[2])})
    for name in nodes:
        if name not in joined:
            raise ConfigError(f"No edges join nodes of type '{name}'.", allowed=joined)
    return TablesSpec({name: _build(NodeTable, table, f"nodes.{name}.") for name, table in nodes.items()}, relations)


def _build(cls: type[Any], table: Any, prefix: str) -> Any:
    """A table's entry, with lists and mappings made of what may be written shorter."""
    if isinstance(table, dict):
        table = dict(table)
        for name in ("files", "label"):
            if name in table and not isinstance(table[name], list):
                table[name] = [table[name]] if table[name] is not None else []
        features = table.get("features")
        if isinstance(features, list) and (wrong := [entry for entry in features if not isinstance(entry, str)]):
            allowed = "column names; with kinds a mapping: {age: standard, country: category}"
            raise ConfigError(f"'{prefix}features' is no list of columns.", given=brief(wrong[0]), allowed=allowed)
        if isinstance(features, str | list):
            table["features"] = dict.fromkeys([features] if isinstance(features, str) else features)
        elif features is None:
            table.pop("features", None)
    built = build(cls, table, prefix)
    used = {column: "label" for column in built.label}
    used |= {getattr(built, key): key for key in ("split", "weight", *built.ENDS) if getattr(built, key, None)}
    for name in built.features:
        if name in used:
            raise ConfigError(f"The column '{name}' is a feature and '{prefix}{used[name]}', too.", hint="leave one out")
    if not built.files:
        raise ConfigError(f"'{prefix}files' names no file.", allowed="a path, a folder, a pattern, or a list of them")
    return built
