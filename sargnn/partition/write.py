"""Parts written into a partition store, one at a time."""

from __future__ import annotations

import numpy as np

from sargnn.graph.store import StoreWriter
from sargnn.partition.cut import Cutter
from sargnn.partition.part import PART_ARRAYS, Part, loop_means, offsets_of
from sargnn.partition.quality import PartFigures, part_figures
from sargnn.partition.sort_edges import Report
from sargnn.partition.store import WEIGHT_ARRAYS, array_name, features_name
from sargnn.steps import step


def write_part(writer: StoreWriter, cutter: Cutter, p: int, report: Report = lambda _: None) -> PartFigures:
    """Cut a part straight into a store, but for what it sends, which its peers' halos say, known when all have been cut."""
    part = cutter.part(p, cutter.edges(p, report), [np.zeros(0, np.int32)])
    figures = part_figures(p, part)
    put_part(writer, p, part)
    del part
    put_features(writer, p, cutter, p, report)
    return figures


def put_part(writer: StoreWriter, rank: int, part: Part) -> None:
    """Without its features and without what it sends. ``rank``: whose part it is in the store."""
    for array in PART_ARRAYS:
        if not array.startswith("send"):
            writer.put(array_name(rank, array), getattr(part, array))
    part.columns.save(writer, array_name(rank, ""), loop_means(part, rank % (len(part.halo_offsets) - 1)))
    if part.weights is not None:
        for array, sums in zip(WEIGHT_ARRAYS, (part.weights.inward, part.weights.outward), strict=True):
            writer.put(array_name(rank, array), sums)


def put_features(writer: StoreWriter, rank: int, cutter: Cutter, place: int, report: Report = lambda _: None) -> None:
    """Piece by piece. ``place``: the part's, among those that ``cutter`` cuts."""
    for node_type, rows in enumerate(cutter.dataset.features):
        with writer.append(array_name(rank, features_name(node_type)), np.float32, (rows.shape[1],)) as target:
            for piece in cutter.features(place, node_type):
                target.write(piece)
                report(piece.nbytes)


def put_send_lists(writer: StoreWriter, cutter: Cutter, first: int) -> None:
    """Write what the parts of a cutter, ``first`` the first one's rank, send each other, from their halos in the store."""
    halos = []
    for q in range(cutter.world):
        offsets, ids = (writer.folder / f"{array_name(first + q, name)}.npy" for name in ("halo_offsets", "halo_ids"))
        ends = np.load(offsets)
        halos.append((ends, np.load(ids, mmap_mode="r") if ends[-1] else np.zeros(0, np.int64)))
    for p in range(cutter.world):
        step("listing what parts send", p, cutter.world)
        send = [cutter.rows_of(p, ids[ends[p] : ends[p + 1]]) for ends, ids in halos]
        writer.put(array_name(first + p, "send_rows"), np.concatenate(send))
        writer.put(array_name(first + p, "send_offsets"), offsets_of(send))
