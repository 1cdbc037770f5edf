"""``dataset=triples``: a knowledge graph as text, as FB15k-237, WN18RR and UMLS come.

``train.txt``, ``valid.txt`` and ``test.txt`` have a triple a line: head, relation and tail, parted by tabs. Entities and
relations are numbered by name, in the order of Unicode. The training triples are the graph's edges and the pairs that are
trained on.

Letters: P triples.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.dataset import Reader
from sargnn.graph.schema import SPLITS
from sargnn.sources.own.reader import object_reader

if TYPE_CHECKING:
    from sargnn.sources.settings import TriplesConfig

_ENTITY = "entity"


def triples_reader(config: TriplesConfig) -> Reader:
    """The reader of the folder ``config.root``. Raises ``DataError``: a file that is missing, or a line that is no triple."""
    files = find_triples(config)
    texts = {split: read_triples(file) for split, file in files.items()}
    every = np.concatenate(list(texts.values()), 1)
    entities, ends = np.unique(every[[0, 2]], return_inverse=True)
    names, relation = np.unique(every[1], return_inverse=True)
    ends, bounds = ends.reshape(2, -1), np.cumsum([0, *(triples.shape[1] for triples in texts.values())])
    graph: dict[str, Mapping[Any, Any]] = {"num_nodes": {_ENTITY: len(entities)}}
    for split, first, last in zip(texts, bounds, bounds[1:], strict=False):
        own, of = ends[:, first:last], relation[first:last]
        every_name = {(_ENTITY, str(name), _ENTITY): own[:, of == number] for number, name in enumerate(names)}
        graph[f"{split}_pairs"] = {triplet: pairs for triplet, pairs in every_name.items() if pairs.size}
        if split == "train":
            graph["edge_index"] = every_name
    root = files["train"].parent
    return object_reader(graph, config, root.name, f"'{root}'", str(root))


def find_triples(config: TriplesConfig) -> dict[str, Path]:
    """Split -> file. Raises ``DataError`` with all that are missing."""
    root = Path(os.path.expanduser(config.root)).resolve()
    files = {split: root / f"{split}.txt" for split in SPLITS}
    if missing := [file.name for file in files.values() if not file.is_file()]:
        raise DataError(
            f"'{root}' is no folder of triples.",
            given=f"{', '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing",
            allowed="train.txt, valid.txt and test.txt: in each line a head, a relation and a tail, parted by tabs",
        )
    return files


def read_triples(file: Path) -> np.ndarray:
    """Texts [3, P]: heads, relations and tails. Raises ``DataError`` naming the line that is none."""
    triples = []
    try:
        with open(file, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                words = line.rstrip("\r\n").split("\t")
                if len(words) != 3 or not all(words):
                    raise DataError(
                        f"Line {number} of '{file}' is no triple.",
                        given=f"{len(words)} columns: {line.strip()[:60]}",
                        allowed="a head, a relation and a tail, parted by tabs",
                    )
                triples.append(words)
    except UnicodeDecodeError as error:
        raise DataError(f"'{file}' is no text in UTF-8.", given=str(error)) from error
    return np.array(triples, dtype=str).reshape(-1, 3).T
