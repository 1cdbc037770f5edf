"""Philox: known answers, the compiled kernel against plain operations, independence of order."""

from __future__ import annotations

import pytest
import torch

from sargnn.rng import Draw, Purpose, dropout_mask, dropout_rows, neighbour_keys, pair_keys, philox

# The three published test vectors of Philox 4x32-10: counter, key, output.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_known_answers(counter: list[int], key: list[int], output: list[int]) -> None:
    words = [torch.tensor([word]) for word in counter]
    assert [int(word) for word in philox(words[0], words[1], words[2], words[3], *key)] == output


@pytest.mark.parametrize("width", [1, 3, 4, 5, 8, 19, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_equals_plain(width: int, dtype: torch.dtype) -> None:
    ids = torch.tensor([0, 5, 2**31 + 7, 2**32 - 1, 17])
    draw = Draw(seed=2**32 - 1, epoch=9, purpose=Purpose.DROPOUT, layer=200, p=0.37)
    x = torch.randn(5, width, dtype=dtype, generator=torch.Generator().manual_seed(width))
    scaled = x * torch.tensor(draw.scale, dtype=dtype)
    assert torch.equal(dropout_rows(x, ids, draw), torch.where(dropout_mask(ids, width, draw), scaled, 0.0))
    assert torch.equal(dropout_rows(x.clone(), ids, draw, out=x), torch.where(dropout_mask(ids, width, draw), scaled, 0.0))


def test_keys_of_pairs() -> None:
    """Compiled, as those of edges are drawn in plain operations; of several relations, in any number of chunks."""
    first, second = torch.randint(2**32, (2, 20_000), generator=torch.Generator().manual_seed(0))
    relation = torch.arange(20_000) % 3
    keys = pair_keys(first.numpy(), second.numpy(), relation.numpy(), 2**32 - 1, Purpose.PAIR_STEP, 7)
    for number in range(3):
        own, tag = relation == number, (int(Purpose.PAIR_STEP) << 24) | number
        words = philox(first[own], second[own], torch.zeros(1).long(), torch.tensor([tag]), 2**32 - 1, 7)
        assert torch.equal(torch.from_numpy(keys)[own], (words[0] << 31) | (words[1] >> 1))
    draw = Draw(2**32 - 1, 7, Purpose.PAIR_STEP, 0, 0.0)
    assert torch.equal(torch.from_numpy(keys)[relation == 0], neighbour_keys(first, second, draw)[relation == 0])


def test_mask_follows_the_id_not_the_row() -> None:
    draw = Draw(seed=1, epoch=2, purpose=Purpose.DROPOUT, layer=0, p=0.5)
    ids = torch.arange(200)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    assert torch.equal(dropout_mask(ids, 33, draw)[order], dropout_mask(ids[order], 33, draw))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_rate(p: float) -> None:
    mask = dropout_mask(torch.arange(4000), 50, Draw(0, 0, Purpose.DROPOUT, 0, p))
    assert abs(float(mask.double().mean()) - (1 - p)) < 5 * (p * (1 - p) / mask.numel()) ** 0.5


def test_every_part_of_the_key_matters() -> None:
    ids = torch.arange(50)
    base = Draw(seed=1, epoch=1, purpose=Purpose.DROPOUT, layer=1, p=0.5)
    others = [
        Draw(2, 1, Purpose.DROPOUT, 1, 0.5),
        Draw(1, 2, Purpose.DROPOUT, 1, 0.5),
        Draw(1, 1, Purpose.INPUT_DROPOUT, 1, 0.5),
        Draw(1, 1, Purpose.DROPOUT, 2, 0.5),
    ]
    for other in others:
        agreement = (dropout_mask(ids, 40, base) == dropout_mask(ids, 40, other)).double().mean()
        assert 0.4 < float(agreement) < 0.6
