"""The library's threads: results do not depend on how many there are, nor on who calls."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
import torch

from sargnn.native import num_threads, set_threads
from tests.native.blocks import dot_rows, random_edges, sum_rows

EDGES = random_edges(3000, 2000, 40_000, chunks=37)
SRC = torch.randn(2000, 65, generator=torch.Generator().manual_seed(1))
GRAD = torch.randn(3000, 65, generator=torch.Generator().manual_seed(2))


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = num_threads()
    yield
    set_threads(before)


def test_results_do_not_depend_on_their_number() -> None:
    set_threads(1)
    sums, dots = sum_rows(EDGES, SRC), dot_rows(EDGES, SRC, GRAD)
    for count in (2, 3, 5, 300, 2):
        set_threads(count)
        assert num_threads() == min(count, 256)
        for _ in range(5):
            assert torch.equal(sum_rows(EDGES, SRC), sums) and torch.equal(dot_rows(EDGES, SRC, GRAD), dots)


def test_no_number_of_threads_is_one() -> None:
    set_threads(0)
    assert num_threads() == 1


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_no_work(chunks: int) -> None:
    set_threads(3)
    assert torch.equal(sum_rows(random_edges(5, 3, 0, chunks), torch.ones(3, 4)), torch.zeros(5, 4))
    assert sum_rows(random_edges(0, 3, 0, 1), torch.ones(3, 4)).shape == (0, 4)


def test_calls_of_several_threads_at_once() -> None:
    set_threads(2)
    wanted = sum_rows(EDGES, SRC)
    wrong: list[int] = []

    def work(number: int) -> None:
        torch.set_num_threads(1)
        for _ in range(20):
            if not torch.equal(sum_rows(EDGES, SRC), wanted):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_process_has_threads_of_its_own() -> None:
    """Those of the parent are not there any more: who waited for them would wait forever."""
    set_threads(3)
    wanted = sum_rows(EDGES, SRC)
    for _ in range(3):
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            torch.set_num_threads(1)  # PyTorch's threads are gone, too
            os._exit(not torch.equal(sum_rows(EDGES, SRC), wanted))
        assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(sum_rows(EDGES, SRC), wanted)
