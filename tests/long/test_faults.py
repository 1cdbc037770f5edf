"""All faults, each as often as it takes to meet a run at different moments. Prints a table of them; see it with ``-s``."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.long import faults

pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]
CASES = [(name, number) for name, (_, times) in faults.FAULTS.items() for number in range(times)]
Results = dict[str, list[faults.Result]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    folder = tmp_path_factory.mktemp("undisturbed") / "reference"
    return folder, faults.reference(folder)


@pytest.fixture(scope="module")
def results() -> Iterator[Results]:
    found: Results = {}
    yield found
    print("\n| fault | times | longest time to end, s | lost | as expected |\n|---|---|---|---|---|")
    for name, each in found.items():
        lost = sorted({result.lost for result in each})
        shown = "; ".join(lost) if len(lost) < 3 else f"{lost[0]} to {lost[-1]}"
        good = sum(not result.wrong for result in each)
        text = (faults.FAULTS[name][0].__doc__ or name).rstrip(".")
        print(f"| {text} | {len(each)} | {max(r.seconds for r in each):.1f} | {shown} | {good} of {len(each)} |")


@pytest.mark.parametrize(("name", "number"), CASES, ids=[f"{name}-{number}" for name, number in CASES])
def test_fault(undisturbed: tuple[Path, list[float]], results: Results, tmp_path: Path, name: str, number: int) -> None:
    reference, wanted = undisturbed
    seed = f"{name}-{number}"
    with faults.prepared(tmp_path, reference / "stores", name) as folder:
        result = faults.FAULTS[name][0](folder, wanted, random.Random(seed))
    results.setdefault(name, []).append(result)
    assert not result.wrong, (seed, result.wrong)
