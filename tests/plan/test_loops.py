"""Loops of message flows: without edges, on mapped read-only arrays, on any number of threads; other types are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sargnn.native import num_threads, set_threads
from sargnn.plan.loops import (
    choose_edges,
    count_each,
    count_into,
    count_kept,
    has_parallel_edges,
    mark_chosen,
    mark_sources,
    renumber,
)
from sargnn.rng import Purpose

NONE = np.zeros(0, np.int32)


def test_no_edges() -> None:
    marks, begins = np.zeros(3, np.uint8), np.full(3, 7, np.int64)
    assert mark_sources(NONE, NONE, np.ones(2, bool), marks) == 0
    assert not marks.any()
    assert count_into(NONE, np.array([0, 1], np.int32), begins) == 0
    assert begins.tolist() == [0, 0, 0]
    assert has_parallel_edges(np.zeros(1, np.int64), NONE) == 0
    mark_chosen(NONE, marks)
    assert not marks.any()


def test_edges_of_mapped_files(tmp_path: Path) -> None:
    """Those of a store are mapped read-only."""
    rng = np.random.default_rng(3)
    for name, numbers in (("src", rng.integers(0, 50, 400)), ("dst", np.sort(rng.integers(0, 20, 400)))):
        np.save(tmp_path / f"{name}.npy", numbers.astype(np.int32))
    src, dst = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("src", "dst"))
    places = np.where(np.arange(20) % 3, -1, np.arange(20)).astype(np.int32)
    kept = places[dst] >= 0
    begins = np.empty(21, np.int64)
    assert count_into(dst, places, begins) == kept.sum()
    new_src, new_dst, edges = np.empty(kept.sum(), np.int32), np.empty(kept.sum(), np.int32), np.empty(kept.sum(), np.int64)
    renumber(src, dst, np.arange(50, dtype=np.int32)[::-1].copy(), places, begins, new_src, new_dst, edges)
    assert (edges == np.flatnonzero(kept)).all()
    assert (new_src == 49 - src[kept]).all() and (new_dst == dst[kept]).all()


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="mark_sources: dst is int64"):
        mark_sources(NONE, NONE.astype(np.int64), np.ones(2, bool), np.zeros(2, np.uint8))
    with pytest.raises(ValueError, match="count_each is not there"):
        count_each(NONE, 0, np.zeros(2, np.int16))


@pytest.mark.parametrize("fanout", [0, 1, 5, 70, 300])
def test_choices_depend_on_no_threads(fanout: int) -> None:
    """Rows with up to 500 edges: where many are kept, the largest number is found in another way."""
    rng = np.random.default_rng(fanout)
    degrees = rng.integers(0, 500, 700)
    begins = np.concatenate([[0], np.cumsum(degrees)])
    sources = np.concatenate([np.sort(rng.integers(0, 900, degree)) for degree in degrees]).astype(np.int32)
    rows, ids = np.arange(700, dtype=np.int32), rng.permutation(900).astype(np.uint32)
    offsets = np.empty(701, np.int64)
    count_kept(rows, 0, begins, 0, fanout, offsets)
    assert (np.diff(offsets) == np.minimum(degrees, fanout)).all()
    before, chosen = num_threads(), []
    for threads in (1, 3):
        set_threads(threads)
        edges = np.empty(offsets[-1], np.int32)
        taken = np.empty(offsets[-1], np.int32)
        choose_edges(rows, 0, begins, sources, ids, 1, 0, 5, 6, int(Purpose.SAMPLE) << 24, offsets, taken, edges)
        assert (sources[edges] == taken).all()
        of_row = np.repeat(rows, np.diff(offsets))
        assert (edges >= begins[of_row]).all() and (edges < begins[of_row + 1]).all()
        assert (np.diff(edges) > 0).all()  # none twice, in their order
        marks = np.zeros(900, np.uint8)
        mark_chosen(taken, marks)
        assert (np.flatnonzero(marks) == np.unique(taken)).all()
        chosen.append(edges)
    set_threads(before)
    assert (chosen[0] == chosen[1]).all()
