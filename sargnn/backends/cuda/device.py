"""The GPU of a process, which asks CUDA's runtime, its backend and its kernel. Neither CUDA nor Triton is imported until it is
used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from sargnn.backends.base import Backend, Kernel, operations_of
from sargnn.backends.device import Device
from sargnn.errors import SargnnError

TIMED_ON = ""
"""The GPUs that the kernels have been timed on; empty: none yet."""
_LOADED_BYTES = 1 << 26
"""Of a table that are on their way at a time, so that the host makes no second copy of it in another dtype."""
_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


class CudaDevice(Device):
    """A GPU. Rows, edges and parameters lie in its memory; what plans are made of, and what is only counted, on the host."""

    is_host = False

    @property
    def unavailable(self) -> str | None:
        if not torch.backends.cuda.is_built():
            return f"This PyTorch ({torch.__version__}) is built without CUDA."
        if not torch.cuda.is_available():
            return "PyTorch finds no GPU: there is none, its driver is missing, or CUDA_VISIBLE_DEVICES hides it."
        return None

    @property
    def name(self) -> str | None:
        return torch.cuda.get_device_name(self.device)

    @property
    def count(self) -> int:
        return torch.cuda.device_count()

    def start(self, number: int) -> None:
        """Choose the GPU, and have PyTorch's own operators give the same bits every time."""
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first product is made
        torch.cuda.set_device(number)
        torch.autograd.set_multithreading_enabled(False)  # backward stays in this thread, with what is set for it
        # Sums that many threads add to (``index_add_``, backward of ``index_select``) go by sorted rows then.
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False  # products of bf16 rows are summed in fp32

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def held_bytes(self) -> int:
        return torch.cuda.memory_allocated(self.device)

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self.device)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    @contextmanager
    def answers_lack_of_memory(self) -> Iterator[None]:
        try:
            yield
        except torch.cuda.OutOfMemoryError as error:
            free, total = torch.cuda.mem_get_info(self.device)
            raise SargnnError(
                "The GPU's memory does not hold what the run needs.",
                given=f"{torch.cuda.get_device_name(self.device)}, {total / 1e9:.1f} GB, {free / 1e9:.1f} GB of it free",
                hint="sargnn plan with the same settings says what a step holds; world=N processes=1 holds a part of the "
                "halo rows at a time, precision=bf16 half of each row, engine.keep_layers=sqrt fewer layers; "
                "device=cpu computes in the machine's own memory",
            ) from error

    def load(self, table: np.ndarray, dtype: torch.dtype) -> Tensor:
        out = torch.empty(table.shape, dtype=dtype, device=self.device)
        self.fill(out, table)
        return out

    def fill(self, out: Tensor, table: np.ndarray) -> None:
        rows = max(1, _LOADED_BYTES // max(1, table[:1].nbytes))
        for first in range(0, len(table), rows):
            super().fill(out[first : first + rows], table[first : first + rows])

    def random_states(self) -> list[Tensor]:
        return [*super().random_states(), torch.cuda.get_rng_state(self.device)]

    def set_random_states(self, states: list[Tensor]) -> None:
        super().set_random_states(states)
        torch.cuda.set_rng_state(states[1], self.device)

    def lines(self) -> list[str]:
        backend = f"the GPU's kernels are interpreted and compiled by tests; timed on: {TIMED_ON or 'none yet'}"
        if self.unavailable is not None:
            return [f"no GPU. {self.unavailable}", backend]
        gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        return [*(f"cuda:{n} {gpu.name}, {gpu.total_memory / 1e9:.1f} GB" for n, gpu in enumerate(gpus)), backend]


class CudaBackend(Backend):
    """One pass of a Triton kernel for each operator on rows; products are PyTorch's."""

    def __init__(self, device: torch.device) -> None:
        from sargnn.backends.cuda.folds import CudaFolds, CudaMoves
        from sargnn.backends.cuda.rows import CudaRows

        super().__init__(device)
        self.rows, self.folds, self.moves = CudaRows(), CudaFolds(), CudaMoves()


class TritonKernel(Kernel):
    """Edge operations by Triton kernels: by destination forward, by source backward, no atomics. On a GPU; on a CPU only in
    Triton's interpreter, for tests."""

    name = "triton"
    backend = CudaBackend
    reads_bf16 = True
    operations = operations_of("triton")

    def unavailable_reasons(self, device: torch.device, dtype: torch.dtype) -> list[str]:
        reasons = []
        if find_spec("triton") is None:
            reasons.append("Triton is not installed")
        if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            reasons.append("it runs on a GPU, not on cpu")
        if dtype not in _DTYPES:
            reasons.append(f"it is written for fp32, fp64 and bf16, not for {dtype}")
        return reasons
