"""Settings of datasets: where a graph comes from, and who reads it. Neither numpy nor torch is needed to check them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sargnn.config.fields import ALWAYS_HASHED, AT_LEAST_ONE, FRACTION, NOT_NEGATIVE, PATH, POSITIVE, RUN, number
from sargnn.config.run import DatasetReader, DatasetSettings
from sargnn.errors import ConfigError, StoreError
from sargnn.resolve import load_attribute

if TYPE_CHECKING:
    from sargnn.graph.dataset import Dataset
    from sargnn.graph.origin import Origin


@dataclass(frozen=True)
class _PackageDataset(DatasetSettings, ABC):
    """Settings of a dataset that the package reads."""

    read_by: ClassVar[str]
    """``module:name`` of what makes the reader from the settings, imported when it is asked for."""

    def reader(self) -> DatasetReader:
        reader: DatasetReader = load_attribute(self.read_by)(self)
        return reader


@dataclass(frozen=True)
class SyntheticConfig(_PackageDataset):
    """The embedded graph: a degree-corrected stochastic block model (``sources/generated/synthetic.py`` has it)."""

    num_nodes: int = field(metadata=AT_LEAST_ONE)
    mean_degree: float = field(metadata=POSITIVE)
    num_features: int = field(metadata=AT_LEAST_ONE)
    num_classes: int = field(metadata=number(low=2))
    blocks_per_class: int = field(metadata=AT_LEAST_ONE)
    homophily: float = field(metadata=FRACTION)
    power: float = field(metadata=number(low=1, open_low=True))
    label_noise: float = field(metadata=FRACTION)
    feature_signal: float = field(metadata=NOT_NEGATIVE)
    train_fraction: float = field(metadata=FRACTION)
    val_fraction: float = field(metadata=FRACTION)
    seed: int = field(metadata=NOT_NEGATIVE)
    normalize_features: bool

    read_by: ClassVar[str] = "sargnn.sources.generated.synthetic:Synthetic"


NEWEST_CONTENT = 2
"""Of the stand-ins' labels, features and split."""


def titled(name: str, version: int) -> str:
    """What a stand-in is called: its name, with the version unless that is the newest."""
    return name if version == NEWEST_CONTENT else f"{name}-v{version}"


@dataclass(frozen=True)
class LookalikeConfig(_PackageDataset):
    """A stand-in for a real graph (``sources/generated/lookalike.py``); scale 1.0 has the real graph's nodes and edges.

    Attributes:
        version: 1 or 2, of labels, features and split. Runs from before there was a choice have the first, the default here.
        add_inverse_edges: of a directed graph every edge also the other way round; parallel edges that this makes stay.
    """

    scale: float = field(metadata=number(low=0, high=10, open_low=True))
    seed: int = field(metadata=number(low=0, high=2**32 - 1))
    normalize_features: bool
    version: int = field(default=1, metadata=number(low=1, high=NEWEST_CONTENT))
    add_inverse_edges: bool = False

    @property
    def title(self) -> str:
        return titled(self.name, self.version)

    read_by: ClassVar[str] = "sargnn.sources.generated.lookalike:Lookalike"


@dataclass(frozen=True)
class MagLikeConfig(_PackageDataset):
    """A stand-in for ogbn-mag, a typed graph (``sources/generated/mag_like.py``); scale 1.0: the real nodes and edges.

    Attributes:
        add_inverse_edges: give every relation its inverse, as a relation of its own.
        homogenize: drop the types; types without features get their neighbours' mean.
        version: as in ``LookalikeConfig``.
    """

    scale: float = field(metadata=number(low=0, high=10, open_low=True))
    seed: int = field(metadata=NOT_NEGATIVE)
    add_inverse_edges: bool
    homogenize: bool
    normalize_features: bool
    version: int = field(default=1, metadata=number(low=1, high=NEWEST_CONTENT))

    @property
    def title(self) -> str:
        return titled(self.name, self.version)

    read_by: ClassVar[str] = "sargnn.sources.generated.mag_like:MagLike"


@dataclass(frozen=True)
class ProteinsLikeConfig(_PackageDataset):
    """A stand-in for ogbn-proteins, whose edges have features (``sources/generated/proteins_like.py``)."""

    scale: float = field(metadata=number(low=0, high=10, open_low=True))
    seed: int = field(metadata=NOT_NEGATIVE)
    normalize_features: bool

    read_by: ClassVar[str] = "sargnn.sources.generated.proteins_like:ProteinsLike"


@dataclass(frozen=True)
class OgbDirConfig(_PackageDataset):
    """A folder in OGB's raw layout, homogeneous or typed.

    Attributes:
        add_inverse_edges: every edge also the other way round; of a typed graph, as relations of their own.
        homogenize: of a typed graph: drop the types; types without features get their neighbours' mean.
    """

    root: str = field(metadata=RUN)
    add_inverse_edges: bool
    normalize_features: bool
    homogenize: bool = field(default=False, metadata=ALWAYS_HASHED)

    read_by: ClassVar[str] = "sargnn.sources.ogb.named:ogb_dir"

    def check_files(self) -> None:
        from sargnn.sources.ogb.layouts import check_folder, folder_at, layout_at

        root = folder_at(self.root)
        check_folder(root, layout_at(root))


OGB_NAMES = (
    *(f"ogbn-{name}" for name in ("products", "arxiv", "proteins", "papers100M", "mag")),
    *(f"ogbl-{name}" for name in ("collab", "ppa", "citation2", "ddi")),
)


@dataclass(frozen=True)
class OgbConfig(_PackageDataset):
    """One of OGB's datasets by its name, from its official raw files.

    Attributes:
        root: the folder that holds the dataset's folder, or that folder itself.
        download: fetch what is missing.
        add_inverse_edges, homogenize: as in ``OgbDirConfig``.
    """

    root: str = field(metadata=RUN)
    download: bool = field(metadata=RUN)
    add_inverse_edges: bool
    normalize_features: bool
    homogenize: bool = field(default=False, metadata=ALWAYS_HASHED)

    fetches: ClassVar[bool] = True
    read_by: ClassVar[str] = "sargnn.sources.ogb.named:ogb_named"

    def check_files(self) -> None:
        from sargnn.sources.ogb.layouts import NAMED, check_folder, named_folder

        folder = named_folder(self.name, self.root)
        if (folder / "raw").is_dir():  # else they are fetched, or a store serves
            check_folder(folder, NAMED[self.name])

    def is_here(self, stores: Path) -> bool:
        from sargnn.sources.ogb.layouts import named_folder

        return (named_folder(self.name, self.root) / "raw").is_dir() or self.find_store(stores) is not None

    def find_store(self, stores: Path) -> Path | None:
        from sargnn.sources.ogb.named import made_before

        return made_before(self, stores)


@dataclass(frozen=True)
class ClassicConfig(_PackageDataset, ABC):
    """What the settings of the datasets in ``sources/classic`` share. Nothing is fetched.

    Attributes:
        root: the folder that holds the files, or one in which PyTorch Geometric or DGL put them.
    """

    root: str = field(metadata=RUN)
    normalize_features: bool

    def check_files(self) -> None:
        from sargnn.sources.classic.files import FILES

        FILES[self.name].find(self.root)

    def is_here(self, stores: Path) -> bool:
        from sargnn.sources.classic.files import FILES

        return FILES[self.name].is_here(self.root)


@dataclass(frozen=True)
class PlanetoidConfig(ClassicConfig):
    """Cora, Citeseer or Pubmed from Planetoid's raw files, with the public split (``sources/classic/planetoid.py``)."""

    read_by: ClassVar[str] = "sargnn.sources.classic.planetoid:Planetoid"


@dataclass(frozen=True)
class RedditConfig(ClassicConfig):
    """Reddit from the two archives that DGL and PyTorch Geometric pass on (``sources/classic/reddit.py``)."""

    read_by: ClassVar[str] = "sargnn.sources.classic.reddit:Reddit"


MOST_CATEGORIES = 1000
"""Of a column of edge features: each takes 4 bytes an edge."""


@dataclass(frozen=True)
class OwnGraphConfig(_PackageDataset, ABC):
    """What the settings of a user's own graph share; edges stay as they are given.

    Attributes:
        add_inverse_edges, homogenize: as in ``OgbDirConfig``.
        split: shares of training, validation and test nodes, drawn by node number from ``split_seed``; null: as the graph says.
        split_column: of masks with a column for each of several splits, the column, from 0; null: masks have one.
        edge_categories: of each column of edge features the number of categories, 0 for numbers; null: all are numbers.
        predicted_type: of a graph that a trained model predicts on, the type whose nodes it is: labels and a split may be
            missing. null: there are some.
    """

    add_inverse_edges: bool
    normalize_features: bool
    homogenize: bool
    split: list[float] | None
    split_seed: int = field(metadata=number(low=0, high=2**32 - 1))
    split_column: int | None = field(default=None, kw_only=True, metadata=NOT_NEGATIVE)
    edge_categories: list[int] | None = field(default=None, kw_only=True, metadata=number(low=0, high=MOST_CATEGORIES))
    predicted_type: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class ArraysConfig(OwnGraphConfig):
    """A folder of arrays, or one ``.npz`` file."""

    root: str = field(metadata=RUN | PATH)

    read_by: ClassVar[str] = "sargnn.sources.own.folder:arrays_reader"

    def check_files(self) -> None:
        from sargnn.sources.own.folder import find_arrays
        from sargnn.sources.own.graph import Unread

        find_arrays(self, Unread())


@dataclass(frozen=True)
class TablesConfig(OwnGraphConfig):
    """Tables with ids, in many files, which a YAML file lists (``sources/tables``).

    Attributes:
        root: the YAML file.
        on_error: what becomes of rows that cannot be used: an error, or they are left out and counted.
        split_by: a column of times or numbers that the split goes by, of the nodes that have labels, else of edges.
        split_at: the two values where validation and test begin; null: ``split`` gives shares.
        like: the folder of a dataset store whose columns' encodings and names of classes count; null: those of these tables.
    """

    root: str = field(metadata=RUN | PATH)
    on_error: Literal["fail", "drop"] = "fail"
    split_by: str | None = None
    split_at: list[str] | None = None
    like: str | None = field(default=None, metadata=PATH)

    read_by: ClassVar[str] = "sargnn.sources.tables.reader:tables_reader"

    def check_files(self) -> None:
        self.reader()

    def check_split_by(self) -> None:
        """Raise ``ConfigError`` where column and bounds do not go together."""
        if self.split_by is None and self.split_at is None:
            return
        if self.split_by is None or (self.split_at is None) == (self.split is None):
            raise ConfigError(
                "A split by time has a column and either shares or two moments.",
                given=f"dataset.split_by={self.split_by} dataset.split={self.split} dataset.split_at={self.split_at}",
                hint="dataset.split_by=COLUMN with dataset.split=[0.8,0.1,0.1] or dataset.split_at=[2024-01-01,2024-07-01]",
            )
        if self.split_at is not None and len(self.split_at) != 2:
            raise ConfigError(
                "'dataset.split_at' is where validation and test begin.",
                given=self.split_at,
                allowed="two moments or numbers, such as [2024-01-01,2024-07-01]",
            )

    def moments(self, *, times: bool) -> list[float]:
        """``split_at`` in numbers: of times the days since 1970-01-01. Raises ``ConfigError``."""
        from datetime import datetime, timezone

        assert self.split_at is not None
        try:
            if not times:
                return self._ascending([float(text) for text in self.split_at])
            moments = [datetime.fromisoformat(text) for text in self.split_at]
            days = [(m if m.tzinfo else m.replace(tzinfo=timezone.utc)).timestamp() / 86400 for m in moments]
        except ValueError as error:
            allowed = "moments such as 2024-01-31 or 2024-01-31T12:00" if times else "numbers"
            raise ConfigError("'dataset.split_at' cannot be read.", given=self.split_at, allowed=allowed) from error
        return self._ascending(days)

    def _ascending(self, bounds: list[float]) -> list[float]:
        if bounds[0] > bounds[1]:
            raise ConfigError("Test begins after validation.", given=self.split_at, hint="the earlier one first")
        return bounds

    def known(self) -> Origin | None:
        """What the dataset in ``like`` remembers of its tables. Raises ``StoreError`` where that is nothing."""
        from sargnn.graph.dataset import open_dataset

        if self.like is None:
            return None
        origin = open_dataset(Path(self.like), verify=False).origin
        if origin is None:
            raise StoreError(f"The store '{self.like}' was not made from tables.", hint="leave dataset.like out")
        return origin


@dataclass(frozen=True)
class PythonConfig(OwnGraphConfig):
    """A function that returns a graph.

    Attributes:
        target: ``FILE.py:FUNCTION`` or ``package.module:function``. args: its arguments, by name.
    """

    args: dict[str, Any]

    reads_target: ClassVar[str] = "a function that returns a graph"

    @property
    def title(self) -> str:
        return self.name if self.target is None else self.target.rpartition(":")[2]

    read_by: ClassVar[str] = "sargnn.sources.own.reader:function_reader"


@dataclass(frozen=True)
class StoredConfig(DatasetSettings):
    """A dataset store that is there, used in place.

    Attributes:
        root: the store's folder. Where it lies decides nothing.
        content: the hash of its content, which decides the losses; null: that of the store that is there now.
    """

    root: str = field(metadata=RUN | PATH)
    content: str | None = None

    def __post_init__(self) -> None:
        from sargnn.sources.prepare import content_of

        if self.content is None and (content := content_of(Path(self.root))) is not None:
            object.__setattr__(self, "content", content)

    @property
    def title(self) -> str:
        from sargnn.sources.prepare import name_of

        return name_of(Path(self.root)) or self.name

    def reader(self) -> DatasetReader:
        raise StoreError(f"The store '{self.root}' is used as it is, not made.")

    def find_store(self, stores: Path) -> Path | None:
        from sargnn.sources.prepare import find_stored

        return find_stored(self)


@dataclass(frozen=True)
class InMemoryDataset(_PackageDataset, ABC):
    """For datasets outside the package that fit this machine's memory: extend it by settings and ``read``."""

    @abstractmethod
    def read(self) -> Dataset:
        """The whole dataset, such as ``Dataset.homogeneous(...)`` gives it."""

    read_by: ClassVar[str] = "sargnn.sources.prepare:SettingsReader"
