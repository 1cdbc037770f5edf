"""Where the files of a dataset lie, and all that are missing, said at once. Next to nothing is imported or read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sargnn.errors import DataError
from sargnn.sources.ogb.layouts import aligned, below_each_other


@dataclass(frozen=True)
class FileSet:
    """The files of one dataset.

    Attributes:
        lines: (file, what it holds), as a person is told.
        origin: who passes the files on, in words.
    """

    dataset: str
    lines: tuple[tuple[str, str], ...]
    origin: str

    def find(self, root: str) -> dict[str, Path]:
        """File name -> path, in the folder ``root`` or one that PyTorch Geometric or DGL would have made in it.

        These are ROOT, ROOT/raw, ROOT/NAME and ROOT/NAME/raw, NAME in any case. The first that has any of the files is taken.
        Raises ``DataError`` with all files that are missing and what each holds.
        """
        base = Path(os.path.expanduser(root)).resolve()
        names = [name for name, _ in self.lines]
        bases = [base]
        if base.is_dir():
            bases += [path for path in sorted(base.iterdir()) if path.is_dir() and path.name.lower() == self.dataset]
        folders = [folder for parent in bases for folder in (parent, parent / "raw")]
        folder = next((folder for folder in folders if any((folder / name).is_file() for name in names)), None)
        told = below_each_other(aligned(self.lines))
        if folder is None:
            raise DataError(
                f"The files of {self.dataset} are not there.",
                given=str(base) if base.is_dir() else f"{base}, which is no folder",
                allowed=told,
                hint=f"dataset.root=FOLDER names the folder that holds them; {self.origin}",
            )
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise DataError(f"'{folder}' lacks {', '.join(missing)}.", allowed=told, hint=f"add what is missing; {self.origin}")
        return {name: folder / name for name in names}

    def is_here(self, root: str) -> bool:
        try:
            self.find(root)
        except DataError:
            return False
        return True


_PARTS = (
    ("x", "features of the training nodes"),
    ("tx", "features of the test nodes"),
    ("allx", "features of all other nodes, the training nodes first"),
    ("y", "classes of the training nodes, one-hot"),
    ("ty", "classes of the test nodes, one-hot"),
    ("ally", "classes of all other nodes, one-hot"),
    ("graph", "the neighbours of each node"),
    ("test.index", "the number of each test node"),
)


REDDIT_FILES = ("reddit_data.npz", "reddit_graph.npz")
FILES = {
    **{
        name: FileSet(
            name,
            tuple((f"ind.{name}.{part}", text) for part, text in _PARTS),
            "they are those of the repository planetoid (Yang et al., 2016)",
        )
        for name in ("cora", "citeseer", "pubmed")
    },
    "reddit": FileSet(
        "reddit",
        ((REDDIT_FILES[0], "feature, node_types, label"), (REDDIT_FILES[1], "row, col, ...: a SciPy matrix in COO format")),
        "they are those of DGL's RedditDataset and PyTorch Geometric's Reddit",
    ),
}
