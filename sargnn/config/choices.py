"""What is chosen by name or brought from outside: modes, kernels, datasets and models, and what the rest must know of each.

No torch is needed to read it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, Protocol

from sargnn.config.combinations import DRAWN, check
from sargnn.config.fields import FRACTION, PLAIN_NAME, TARGET, chosen_from, number, only_with
from sargnn.config.partitioner import Strategy

DATASETS = chosen_from("dataset", "sargnn.sources:DATASETS")

Task = Literal["classes", "multilabel", "regression"]
"""What a node's labels are: one class, several labels, or numbers (``sargnn.graph.schema``)."""


@dataclass(frozen=True)
class ModeConfig(Strategy):
    """Which training mode runs: a key of ``sargnn.engine.modes.MODES``, or a class outside.

    Attributes:
        keep: what stays for the backward pass: rows, or all: the scores of attention, too.
    """

    keep: Literal["rows", "all"] = field(default="rows", kw_only=True, metadata=only_with("no_remat"))


@dataclass(frozen=True)
class KernelConfig(Strategy):
    """Which kernel runs: ``auto``, a key of ``sargnn.backends.KERNELS``, or a class outside."""


class DatasetReader(Protocol):
    """Where a dataset comes from: raw files or a generator (``sargnn.graph.dataset.Reader``)."""

    def identity(self) -> dict[str, Any]:
        """What decides the content, JSON-able, for the store's key."""

    def write(self, path: Path, buffer_bytes: int) -> None:
        """Write the dataset's store, whose folder does not exist yet, in about ``buffer_bytes`` of memory."""


@dataclass(frozen=True)
class DatasetSettings(ABC):
    """What every dataset's settings have: a name, and how the dataset is read. The package's own:
    ``sargnn.sources.DATASETS``.

    Attributes:
        target: ``FILE.py:NAME`` of a class outside the package that extends this one.
        add_self_loops: null: as the model's definition has it (gcn, gat: true).
        loop_features: of the self-loops that this adds, where edges have features: zeros, or mean, of a node's in-edges.
        edge_weights: use the graph's edge weights, where it has any; false: train as if there were none.
        task: what labels are read as: classes, multilabel or regression; task=... says the same.
        link_split: task=links, edges: shares of training, validation and test pairs, such as [0.85,0.05,0.1]; null: a split is
            given.
        link_messages: training pairs, or edges with labels, stay edges of the graph; false: they are pairs only.
        link_relations: typed: whose edges are links, such as [writes]; null: those of all relations.
        link_seed: of the draw of pairs.
    """

    name: str = field(metadata=PLAIN_NAME)
    target: str | None = field(default=None, kw_only=True, metadata=TARGET)
    add_self_loops: bool | None = field(default=None, kw_only=True)
    loop_features: Literal["zeros", "mean"] = field(default="zeros", kw_only=True)
    task: Task | None = field(default=None, kw_only=True)
    edge_weights: bool = field(default=True, kw_only=True)
    link_split: list[float] | None = field(default=None, kw_only=True, metadata=FRACTION)
    link_messages: bool = field(default=True, kw_only=True)
    link_relations: list[str] | None = field(default=None, kw_only=True)
    link_seed: int = field(default=0, kw_only=True, metadata=number(low=0, high=2**32 - 1))

    reads_target: ClassVar[str] = ""
    """What the target names where that is no class of settings: what the dataset is made by."""
    fetches: ClassVar[bool] = False
    """Raw files that are missing may be fetched."""

    @property
    def title(self) -> str:
        """What a person is told that the dataset is called."""
        return self.name

    def title_of(self, stored: str) -> str:
        """The title where a store is there.

        ``stored``: what the store says. It was made for the first of all datasets with the same content, so that it counts only
        where these settings have no title of their own.
        """
        return stored if self.title == self.name else self.title

    @abstractmethod
    def reader(self) -> DatasetReader:
        """What writes the dataset's store."""

    def check_files(self) -> None:
        """Raise ``DataError`` with all files that are missing, before anything slow; what is fetched or drawn lacks none."""
        return None

    def is_here(self, stores: Path) -> bool:
        """Whether it can be read without fetching anything. stores: the folder of dataset stores."""
        return True

    def find_store(self, stores: Path) -> Path | None:
        """A store below ``stores`` that serves without reading anything; None where the reader must say what it would make."""
        return None

    def check_links(self) -> None:
        """Raise ``ConfigError`` for settings of links that cannot be drawn."""
        check(SimpleNamespace(dataset=self), DRAWN)


@dataclass(frozen=True)
class ModelSettings(ABC):
    """What every model's settings have, and all that the rest must know of a model. No torch is needed to read it.

    Those of the package: ``sargnn.models.MODELS``.

    Attributes:
        target: ``FILE.py:NAME`` of a class outside the package that extends this one.
        adds_self_loops: its definition has a self-loop at every node.
        trains: it has parameters to train.
        reads_target: what the target names where that is no class of settings.
        no_embeddings: why there are none, where there are none.
    """

    name: str = field(metadata=PLAIN_NAME)
    target: str | None = field(default=None, kw_only=True, metadata=TARGET)

    reads_target: ClassVar[str] = ""
    adds_self_loops: ClassVar[bool] = False
    trains: ClassVar[bool] = True
    no_embeddings: ClassVar[str] = "A model of one layer has no embeddings."

    @property
    def title(self) -> str:
        """What runs are named after."""
        return self.name

    @property
    @abstractmethod
    def operations(self) -> tuple[str, ...]:
        """Kernel operations that its layers need."""

    def check_target(self) -> None:
        """What the target names can be loaded, and takes what it is given. May import torch. Raises ``ConfigError``."""
        return None

    @abstractmethod
    def build(self, shape: Any) -> Any:
        """The ``models.base.Model`` for a graph of this ``GraphShape``, in fp32. Raises ``ConfigError`` where none is."""

    @property
    def no_weights(self) -> str | None:
        """Why it cannot use edge weights, a sentence; None: it can."""
        return "A model from outside the package says so itself where it uses edge weights (no_weights)."

    @property
    def divides_by_weights(self) -> bool:
        """Whether it divides by sums of edge weights, which must not be negative then."""
        return False

    @property
    def draws_by_id(self) -> bool:
        """Whether it draws anything by a node's id, such as dropout. (Rows for node types without features are drawn, too.)"""
        return False

    @property
    def reads_degrees(self) -> bool:
        """Whether it is built with a histogram of the nodes' in-degrees."""
        return False

    @property
    def reads_edge_features(self) -> bool:
        """Whether it reads the graph's features of edges, where there are any."""
        return False

    @property
    def has_embeddings(self) -> bool:
        """Whether its last layer reads rows that another layer wrote."""
        return False

    @property
    def aggregations(self) -> int | None:
        """How many of its layers aggregate; None: that is known once it is built."""
        return None

    @property
    def norms_over_rows(self) -> bool:
        """Whether a row's output depends on which other rows are computed, as with batch norm."""
        return False

    @property
    def no_preload(self) -> str | None:
        """Why servers cannot preload what its rows depend on, a sentence; None: they can."""
        return None

    def check(self, run: Any) -> None:
        """Refuse what does not go together with this model of a ``RunConfig``. Raises ``ConfigError``."""
        return None
