"""Edge weights of a DGL partition: edge data called as in own graphs, ``w`` or ``edge_weight``.

    partK/edge_feat.dgl: HEAD:RELATION:TAIL/NAME -> a row for each of the part's own edges, in the order of its graph

Letters: e own edges of a part of one relation.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from sargnn.errors import DataError
from sargnn.graph.edge_columns import WEIGHT, EdgeColumns
from sargnn.graph.weights import WeightCheck
from sargnn.interop.dgl_files import load_tensors
from sargnn.sources.dgl_partition.parts import DglParts, Triplet
from sargnn.sources.own.graph import NAMES, WEIGHTS


@dataclass(frozen=True)
class DglWeights:
    """Which edge data are weights.

    Attributes:
        files: of the parts. keys: relation -> name in them; relations without weights are left out.
    """

    files: tuple[Path, ...]
    keys: dict[Triplet, str]

    def of_part(self, p: int, counts: dict[Triplet, int]) -> dict[Triplet, EdgeColumns]:
        """Relation -> weights, float32 [e].

        Args:
            counts: how many own edges of each relation the part has.

        Raises:
            DataError: they are not there, of another shape, or not finite; the file is named.
        """
        data = load_tensors(self.files[p]) if self.keys else {}
        weights = {}
        for triplet, key in self.keys.items():
            rows = data.get(key)
            if rows is None or rows.size != counts[triplet] or len(rows) != counts[triplet]:
                raise DataError(
                    f"'{self.files[p]}' does not hold '{key}' for each of the part's own edges.",
                    given="nothing" if rows is None else list(rows.shape),
                    allowed=f"[{counts[triplet]}]",
                )
            check = WeightCheck(f"'{self.files[p]}'", lambda position, key=key: f"row {position} of '{key}' (counted from 0)")  # type: ignore[misc]
            weights[triplet] = EdgeColumns.of({WEIGHT: check.to_float32(rows.reshape(-1))})
        return weights


def find_weights(parts: DglParts) -> DglWeights:
    """The weights that the first part has; a warning names edge data that is not read. Raises ``DataError`` for two names."""
    if not parts.edge_data:
        return DglWeights((), {})
    place, others = parts.edge_data[0], []
    keys: dict[Triplet, str] = {}
    for key in sorted(load_tensors(place)):
        prefix, _, name = key.rpartition("/")
        triplet = next((relation for relation in parts.edges if prefix in (":".join(relation), relation[1])), None)
        if triplet is None or NAMES.get(name) != WEIGHTS:
            others.append(key)
        elif triplet in keys:
            raise DataError(f"'{place}' holds '{keys[triplet]}' and '{key}', which mean the same.", hint="leave one out")
        else:
            keys[triplet] = key
    if others:
        logging.getLogger(__name__).warning(f"not read of '{place.parent.parent}': edge data {', '.join(others)}")
    return DglWeights(parts.edge_data, keys)
