"""Settings of datasets: where a graph comes from, and who reads it. Neither numpy nor torch is needed to check them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sargnn.config.choices import DatasetReader, DatasetSettings
from sargnn.config.fields import (
    ALWAYS_HASHED,
    AT_LEAST_ONE,
    FRACTION,
    NOT_NEGATIVE,
    PATH,
    POSITIVE,
    RUN,
    number,
    only_with,
    starts,
)
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
class _ReadDataset(_PackageDataset, ABC):
    """Settings of one whose features may be changed while they are read or drawn.

    Attributes:
        normalize_features: divide each row by its L1 norm.
    """

    normalize_features: bool = field(kw_only=True, metadata=starts(False))


@dataclass(frozen=True)
class SyntheticConfig(_ReadDataset):
    """The embedded graph: a degree-corrected stochastic block model (``sources/generated/synthetic.py`` has it).

    Attributes:
        num_nodes: nodes.
        mean_degree: edges into a node, on average.
        num_features: of a node.
        num_classes: labels to tell apart.
        blocks_per_class: communities that make up a class.
        homophily: share of edges that stay inside a block.
        power: exponent of the degree distribution.
        label_noise: share of labels replaced by random ones.
        feature_signal: length of the class direction; the noise has unit variance per feature.
        train_fraction: share of nodes that are trained on.
        val_fraction: share of nodes to validate on; the rest are test nodes.
        seed: of the drawn graph.
    """

    num_nodes: int = field(metadata=AT_LEAST_ONE | starts(20000))
    mean_degree: float = field(metadata=POSITIVE | starts(16.0))
    num_features: int = field(metadata=AT_LEAST_ONE | starts(64))
    num_classes: int = field(metadata=number(low=2) | starts(10))
    blocks_per_class: int = field(metadata=AT_LEAST_ONE | starts(4))
    homophily: float = field(metadata=FRACTION | starts(0.8))
    power: float = field(metadata=number(low=1, open_low=True) | starts(2.5))
    label_noise: float = field(metadata=FRACTION | starts(0.1))
    feature_signal: float = field(metadata=NOT_NEGATIVE | starts(1.2))
    train_fraction: float = field(metadata=FRACTION | starts(0.1))
    val_fraction: float = field(metadata=FRACTION | starts(0.1))
    seed: int = field(metadata=NOT_NEGATIVE | starts(0))

    read_by: ClassVar[str] = "sargnn.sources.generated.synthetic:Synthetic"


NEWEST_CONTENT = 2
"""Of the stand-ins' labels, features and split."""


def titled(name: str, version: int) -> str:
    """What a stand-in is called: its name, with the version unless that is the newest."""
    return name if version == NEWEST_CONTENT else f"{name}-v{version}"


@dataclass(frozen=True)
class LookalikeConfig(_ReadDataset):
    """A stand-in for a real graph (``sources/generated/lookalike.py``); scale 1.0 has the real graph's nodes and edges.

    Attributes:
        scale: of the real graph's nodes and edges; 1.0: as large.
        seed: of the drawn graph.
        version: of labels, features and split; 1: easier, on the same edges.
        add_inverse_edges: every edge also the other way round, as papers100M is trained.
    """

    scale: float = field(metadata=number(low=0, high=10, open_low=True))
    seed: int = field(metadata=number(low=0, high=2**32 - 1) | starts(0))
    version: int = field(default=1, metadata=number(low=1, high=NEWEST_CONTENT) | starts(NEWEST_CONTENT))
    add_inverse_edges: bool = field(default=False, metadata=only_with("papers_like"))

    @property
    def title(self) -> str:
        return titled(self.name, self.version)

    read_by: ClassVar[str] = "sargnn.sources.generated.lookalike:Lookalike"


@dataclass(frozen=True)
class MagLikeConfig(LookalikeConfig):
    """A stand-in for ogbn-mag, a typed graph (``sources/generated/mag_like.py``).

    Attributes:
        add_inverse_edges: give every relation its inverse, as a relation of its own.
        homogenize: drop the types; types without features get their neighbours' mean.
    """

    seed: int = field(metadata=NOT_NEGATIVE | starts(0))
    add_inverse_edges: bool = field(kw_only=True, metadata=starts(True))
    homogenize: bool = field(kw_only=True, metadata=starts(False))

    read_by: ClassVar[str] = "sargnn.sources.generated.mag_like:MagLike"


@dataclass(frozen=True)
class ProteinsLikeConfig(_ReadDataset):
    """A stand-in for ogbn-proteins, whose edges have features (``sources/generated/proteins_like.py``).

    Attributes:
        scale: of ogbn-proteins' nodes; below 1.0 a node has scale times its neighbours, too; 1.0: as large.
        seed: of the drawn graph.
    """

    scale: float = field(metadata=number(low=0, high=10, open_low=True) | starts(0.1))
    seed: int = field(metadata=NOT_NEGATIVE | starts(0))

    read_by: ClassVar[str] = "sargnn.sources.generated.proteins_like:ProteinsLike"


@dataclass(frozen=True)
class OgbDirConfig(_ReadDataset):
    """A folder in OGB's raw layout, homogeneous or typed.

    Attributes:
        root: the folder that holds raw/ and split/.
        add_inverse_edges: false where the edge file already holds both directions; typed: as relations of their own.
        homogenize: typed: drop the types; types without features get their neighbours' mean.
    """

    root: str = field(metadata=RUN)
    add_inverse_edges: bool = field(metadata=starts(True))
    homogenize: bool = field(default=False, metadata=ALWAYS_HASHED | only_with("ogb_dir", "ogbn-mag"))

    read_by: ClassVar[str] = "sargnn.sources.ogb.named:ogb_dir"

    def check_files(self) -> None:
        from sargnn.sources.ogb.layouts import check_folder, folder_at, layout_at

        root = folder_at(self.root)
        check_folder(root, layout_at(root))


OGB_NAMES = (
    *(f"ogbn-{name}" for name in ("products", "arxiv", "proteins", "papers100M", "mag")),
    *(f"ogbl-{name}" for name in ("collab", "ppa", "citation2", "ddi", "wikikg2", "biokg")),
)


@dataclass(frozen=True)
class OgbConfig(OgbDirConfig):
    """One of OGB's datasets by its name, from its official raw files.

    Attributes:
        root: the raw files are in ROOT/ogbn_NAME or ogbl_NAME, or fetched into it.
        download: fetch what is missing.
        add_inverse_edges: every edge also the other way round.
    """

    root: str = field(metadata=RUN | starts("data"))
    download: bool = field(kw_only=True, metadata=RUN | starts(True))

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
class ClassicConfig(_ReadDataset, ABC):
    """What the settings of the datasets in ``sources/classic`` share. Nothing is fetched.

    Attributes:
        root: the files are here, as PyTorch Geometric or DGL put them, too.
    """

    root: str = field(metadata=RUN | starts("data"))

    def check_files(self) -> None:
        from sargnn.sources.classic.files import FILES

        FILES[self.name].find(self.root)

    def is_here(self, stores: Path) -> bool:
        from sargnn.sources.classic.files import FILES

        return FILES[self.name].is_here(self.root)


@dataclass(frozen=True)
class PlanetoidConfig(ClassicConfig):
    """Cora, Citeseer or Pubmed from Planetoid's raw files, with the public split (``sources/classic/planetoid.py``).

    Attributes:
        root: the files ind.NAME.* are here, or in raw/, NAME/ or NAME/raw/ below it.
    """

    read_by: ClassVar[str] = "sargnn.sources.classic.planetoid:Planetoid"


@dataclass(frozen=True)
class RedditConfig(ClassicConfig):
    """Reddit from the two archives that DGL and PyTorch Geometric pass on (``sources/classic/reddit.py``).

    Attributes:
        root: reddit_data.npz and reddit_graph.npz are here, or in raw/, reddit/ or reddit/raw/ below it.
    """

    read_by: ClassVar[str] = "sargnn.sources.classic.reddit:Reddit"


MOST_CATEGORIES = 1000
"""Of a column of edge features: each takes 4 bytes an edge."""


@dataclass(frozen=True)
class OwnGraphConfig(_ReadDataset, ABC):
    """What the settings of a user's own graph share.

    Attributes:
        add_inverse_edges: edges stay as given; true: every edge also the other way round; typed: as relations of their own.
        homogenize: typed: drop the types; types without features get their neighbours' mean.
        split: shares of training, validation and test nodes, such as [0.6,0.2,0.2]; null: the graph's own masks.
        split_seed: of the draw.
        split_column: of masks with several splits, [nodes, k]: which column, from 0; another split is another dataset.
        edge_categories: edge features: each column's number of categories, as [5,0,7], embedded; 0: numbers, as they are.
    """

    add_inverse_edges: bool = field(metadata=starts(False, queries=True))
    homogenize: bool = field(metadata=starts(False))
    split: list[float] | None = field(metadata=starts(None))
    split_seed: int = field(metadata=number(low=0, high=2**32 - 1) | starts(0))
    split_column: int | None = field(default=None, kw_only=True, metadata=NOT_NEGATIVE)
    edge_categories: list[int] | None = field(default=None, kw_only=True, metadata=number(low=0, high=MOST_CATEGORIES))
    # Of a graph that a trained model predicts on, the type whose nodes it is: labels and a split may be missing.
    predicted_type: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class ArraysConfig(OwnGraphConfig):
    """A folder of arrays, or one ``.npz`` file.

    Attributes:
        root: the folder, or the .npz file.
    """

    root: str = field(metadata=RUN | PATH)

    read_by: ClassVar[str] = "sargnn.sources.own.folder:arrays_reader"

    def check_files(self) -> None:
        from sargnn.sources.own.folder import find_arrays
        from sargnn.sources.own.graph import Unread

        find_arrays(self, Unread())


@dataclass(frozen=True)
class TriplesConfig(OwnGraphConfig):
    """A knowledge graph as text (``sources/own/triples.py``).

    Attributes:
        root: the folder with train.txt, valid.txt and test.txt.
    """

    root: str = field(metadata=RUN | PATH)

    read_by: ClassVar[str] = "sargnn.sources.own.triples:triples_reader"

    def check_files(self) -> None:
        from sargnn.sources.own.triples import find_triples

        find_triples(self)


@dataclass(frozen=True)
class TablesConfig(OwnGraphConfig):
    """Tables with ids, in many files, which a YAML file lists (``sources/tables``).

    Attributes:
        root: the YAML file.
        on_error: or drop: rows that cannot be used are left out and counted.
        split_by: a column of times: the earliest rows are trained on; with split=[0.8,0.1,0.1] or split_at.
        split_at: where validation and test begin, such as [2024-01-01,2024-07-01].
        like: the store of another dataset of tables: categories, means and classes are that one's.
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
        args: its arguments: dataset.args.KEY=VALUE.
    """

    args: dict[str, Any] = field(metadata=starts({}))

    reads_target: ClassVar[str] = "a function that returns a graph"

    @property
    def title(self) -> str:
        return self.name if self.target is None else self.target.rpartition(":")[2]

    read_by: ClassVar[str] = "sargnn.sources.own.reader:function_reader"


@dataclass(frozen=True)
class StoredConfig(DatasetSettings):
    """A dataset store that is there, used in place.

    Attributes:
        root: the store's folder, such as sargnn prepare prints.
        content: its content hash; null: whatever the store holds now.
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
