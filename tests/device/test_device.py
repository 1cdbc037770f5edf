"""What a GPU answers, as far as that can be asked without one; what a run with ``device=cuda`` is refused."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from sargnn.backends.cuda import device as cuda
from sargnn.backends.cuda.device import CudaDevice
from sargnn.backends.device import Device, device_of
from sargnn.engine.serving import engine_alone
from sargnn.errors import ConfigError, SargnnError
from sargnn.memory.settle import Machine, settle
from sargnn.tracking.memory import PeakMeter
from tests.configs import config

WITHOUT = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.mark.parametrize(
    "words", [("spill=all",), ("memory_budget=4GB",), ("comm.backend=nccl", "world=4", "processes=1")], ids=str
)
def test_what_goes_with_no_gpu(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        config("device=cuda", *words)


@WITHOUT
def test_no_gpu_is_one_message() -> None:
    with pytest.raises(ConfigError, match=r"no device.*\n.*device=cuda\n.*device=cpu\n.*sargnn info"):
        engine_alone(config("device=cuda"))


def test_memory_is_planned_on_the_host() -> None:
    run = config("device=cuda", "kernel=triton")
    assert (run.on_host.device, run.on_host.kernel.choice) == ("cpu", "auto")
    assert config().on_host == config()


@WITHOUT
def test_lines() -> None:
    gpu, backend = device_of("cuda").lines()
    assert gpu.startswith("no GPU. ") and "timed on" in backend and device_of("cpu").lines() == ["cpu"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_tables_go_there_in_pieces(dtype: torch.dtype) -> None:
    table = np.random.default_rng(0).normal(size=(37, 5)).astype(np.float32)
    with patch.object(cuda, "_LOADED_BYTES", 90):
        there = CudaDevice(torch.device("cpu")).load(table, dtype)
    assert torch.equal(there, torch.from_numpy(table).to(dtype))


def test_lack_of_memory_is_one_message() -> None:
    with (
        patch("torch.cuda.mem_get_info", lambda device: (10**9, 80 * 10**9)),
        patch("torch.cuda.get_device_name", lambda device: "a GPU"),
        pytest.raises(SargnnError, match="a GPU, 80.0 GB, 1.0 GB of it free\n.*sargnn plan"),
        CudaDevice(torch.device("cuda")).answers_lack_of_memory(),
    ):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")


class Counted(Device):
    """Holds what it is told to."""

    is_host, held, most = False, 100, 0

    def held_bytes(self) -> int:
        return self.held

    def peak_bytes(self) -> int:
        return self.most

    def reset_peak(self) -> None:
        self.most = self.held


def test_peaks_are_the_devices() -> None:
    """Above what it held at the beginning; the host's resident set is noted beside."""
    device = Counted(torch.device("cpu"))
    meter = PeakMeter.here(device)
    meter.begin()
    device.most = 350
    assert meter.end(training=True) == 250
    meter.begin()
    assert meter.end() == 0
    assert meter.training_bytes < 10**9 and meter.process_peak_bytes >= meter.baseline_bytes > 10**6


def test_a_mode_is_chosen_without_a_plan(tmp_path: Path) -> None:
    run, planned = settle(config("device=cuda", "mode=auto"), tmp_path, Machine.here(1))
    assert run.mode.name == "sar" and run.device == "cuda" and planned is None
