"""Which library a processor gets, and that all of them compute the same."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sargnn import native
from sargnn.errors import SargnnError
from sargnn.native import build
from tests.native.blocks import dot_rows, random_edges, sum_rows
from tests.processes import ROOT, run_command, search_path

OTHERS = [name for name in build.usable() if name != build.usable()[-1]]
V2 = build.LIBRARIES["x86-64-v2"].needs
AVX2, AVX512 = build.LIBRARIES["avx2"].needs, build.LIBRARIES["avx512"].needs
CALLING = ["backends", "native/test_entry.py", "native/test_threads.py", "test_rng.py", "partition", "plan", "graph", "tasks"]
"""Tests of what calls the library."""
on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86-64")


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Of which a test says what it can do."""
    monkeypatch.delenv(build.ISA, raising=False)
    monkeypatch.setattr(native, "chosen", native.chosen.__wrapped__)
    return monkeypatch


@on_x86
@pytest.mark.parametrize(
    "flags, name",
    [
        ("", "x86-64-v2"),
        (V2, "x86-64-v2"),
        (f"{V2} avx avx2", "x86-64-v2"),
        (AVX2, "avx2"),
        (f"{AVX2} avx512f avx512cd", "avx2"),
        (AVX512, "avx512"),
    ],
    ids=["not said", "v2", "avx2 without fma", "avx2", "avx512 without bw", "avx512"],
)
def test_the_widest_is_chosen(processor: pytest.MonkeyPatch, flags: str, name: str) -> None:
    processor.setattr(build, "_flags", lambda: frozenset(flags.split()))
    assert native.chosen() == name
    used, *wider = native.describe().split("; ")
    assert used == name
    assert [text.split()[0] for text in wider] == build.names_here()[build.names_here().index(name) + 1 :]
    assert name == "avx512" or "avx512bw" in wider[-1].partition(" needs ")[2]


@on_x86
def test_a_name_forces_one(processor: pytest.MonkeyPatch) -> None:
    processor.setattr(build, "_flags", lambda: frozenset(AVX2.split()))
    processor.setenv(build.ISA, "x86-64-v2")
    assert native.chosen() == "x86-64-v2" and native.describe() == "x86-64-v2, which SARGNN_ISA asks for"
    for name in ("avx3", "aarch64"):
        processor.setenv(build.ISA, name)
        with pytest.raises(
            SargnnError, match=rf"SARGNN_ISA names no library(?s:.*)given: +{name}(?s:.*)allowed: x86-64-v2, avx2"
        ):
            native.chosen()
    processor.setenv(build.ISA, "avx512")
    with pytest.raises(SargnnError, match="This processor cannot run SARGNN_ISA=avx512: it lacks avx512bw, .*avx512vl."):
        native.chosen()


@pytest.mark.parametrize("system, machine", [("darwin", "arm64"), ("linux", "riscv64"), ("win32", "AMD64")])
def test_other_machines(processor: pytest.MonkeyPatch, system: str, machine: str) -> None:
    processor.setattr(sys, "platform", system)
    processor.setattr(platform, "machine", lambda: machine)
    with pytest.raises(SargnnError, match=f"cannot run here(?s:.*){machine}(?s:.*)x86-64-v2 or 64-bit Arm"):
        native.chosen()


def test_a_processor_that_cannot_run_the_narrowest(processor: pytest.MonkeyPatch) -> None:
    if build.names_here() != ["x86-64-v2", "avx2", "avx512"]:
        pytest.skip("names of x86-64")
    processor.setattr(build, "_flags", lambda: frozenset({"sse2"}))
    with pytest.raises(SargnnError, match="cannot run here"):
        native.chosen()


def test_a_missing_library(processor: pytest.MonkeyPatch, tmp_path: Path) -> None:
    processor.setattr(native, "library_path", lambda name: tmp_path / f"{name}.so")
    with pytest.raises(SargnnError, match=rf"is missing(?s:.*)python -m sargnn.native {native.chosen()}"):
        native._load.__wrapped__(native.chosen())


def test_a_stale_library(processor: pytest.MonkeyPatch) -> None:
    processor.setattr(native, "digest_of_sources", lambda: "of other sources")
    with pytest.raises(SargnnError, match=rf"older than its sources(?s:.*)python -m sargnn.native {native.chosen()}"):
        native._load.__wrapped__(native.chosen())


def test_sources_need_not_be_there(processor: pytest.MonkeyPatch, tmp_path: Path) -> None:
    processor.setattr(native, "SOURCES", tmp_path / "src")
    native._load.__wrapped__(native.chosen())


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 7, 16, 63, 64, 65, 200])
def test_all_compute_the_same(name: str, dtype: torch.dtype, width: int) -> None:
    """To the last bit where products and sums are rounded together, as from AVX2 on; sums without products everywhere."""
    draw = torch.Generator().manual_seed(width)
    edges, src = random_edges(50, 40, 500), torch.randn(40, width, generator=draw).to(dtype)
    grad, weight = torch.randn(50, width, generator=draw).to(dtype), torch.rand(500, generator=draw)
    weight = weight.double() if dtype == torch.float64 else weight
    assert torch.equal(sum_rows(edges, src, of=name), sum_rows(edges, src))
    rounded = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 1e-2}[dtype] if name == "x86-64-v2" else 0.0
    for other, chosen in (
        (sum_rows(edges, src, weight, of=name), sum_rows(edges, src, weight)),
        (dot_rows(edges, src, grad, of=name), dot_rows(edges, src, grad)),
    ):
        torch.testing.assert_close(other, chosen, rtol=rounded, atol=rounded * width)


def _run_kernel_tests(name: str, folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    files = [ROOT / "tests" / name for name in CALLING]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(ROOT),
        *options,
        *map(str, files),
    ]
    variables = os.environ | {"PYTHONPATH": search_path(ROOT), build.ISA: name} | environment
    return run_command(command, folder, environment=variables, timeout_s=1500)


@pytest.mark.long
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("name", OTHERS)
def test_kernels_with(name: str, tmp_path: Path) -> None:
    done = _run_kernel_tests(name, tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.machine
@pytest.mark.timeout(3000)
def test_kernels_sanitized(tmp_path: Path) -> None:
    """A wrong address or undefined behaviour ends the process."""
    compiler = build.find_compiler(build.LIBRARIES[build.usable()[-1]])
    runtimes = []
    for runtime in ("libasan.so", "libubsan.so"):
        asked = [*compiler.command, f"-print-file-name={runtime}"]
        runtimes.append(subprocess.run(asked, capture_output=True, text=True).stdout.strip())
    if not all(Path(runtime).is_absolute() for runtime in runtimes):
        pytest.skip(f"{compiler.command[0]} has no sanitizers")
    build.build([build.SANITIZED])
    # What Python and PyTorch never give back is not asked about; DGL, as in domain_parallel, asks wrongly, which ends it.
    options = {"LD_PRELOAD": ":".join(runtimes), "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = _run_kernel_tests(build.SANITIZED, tmp_path, "-k", "not dgl and not domain_parallel", **options)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
