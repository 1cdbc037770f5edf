"""Compiles the kernels of ``sargnn.backends.cuda`` for GPUs that are not here, and prints what each takes.

    python -m tests.backends.cuda.compile_kernels fp32:90 bf16:80

All operations run on tables as wide as those of the standard models; where a kernel would start, it is compiled for the
arguments that it got. So nothing can be forgotten here, and nothing is computed. A line of JSON for each kernel and GPU.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sargnn.backends.cuda import launch
from sargnn.backends.cuda.device import TritonKernel
from sargnn.backends.cuda.folds import CudaFolds, CudaMoves
from sargnn.backends.cuda.rows import CudaRows
from sargnn.backends.operations import Attention, AttentionGradients, AttentionInputs, RunningSoftmax
from sargnn.bf16 import ROW_DTYPES, wide
from sargnn.rng import Draw, Purpose
from tests.backends.blocks import block_of
from tests.backends.rows_cases import folds_of, moves_of, rows_of

_TYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.int16: "i16", torch.int32: "i32",
          torch.int64: "i64", torch.uint8: "u8", torch.bool: "i1"}  # fmt: skip
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class Compiler:
    """Takes the place of ``launch.run``."""

    def __init__(self, gpu: int) -> None:
        self.gpu = gpu
        self.done: set[str] = set()

    def run(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        warps = constants.pop("num_warps", 4)
        signature, attributes = {}, {}
        names = [parameter.name for parameter in kernel.params]
        for at, (parameter, value) in enumerate(zip(kernel.params, arguments, strict=False)):
            if isinstance(value, Tensor):
                signature[parameter.name] = f"*{_TYPES[value.dtype]}"
            elif value is None or isinstance(value, float) or parameter.is_constexpr:
                constants[parameter.name] = value
            else:
                signature[parameter.name] = parameter.annotation_type or "i32"
            if isinstance(value, Tensor) or (isinstance(value, int) and value and value % 16 == 0):
                attributes[(at,)] = [["tt.divisibility", 16]]
        signature |= dict.fromkeys(constants, "constexpr")
        signature = {name: signature[name] for name in names}
        kinds = sorted({kind for kind in signature.values() if kind in ("*fp32", "*fp64", "*bf16")})
        sizes = {name: value for name, value in constants.items() if isinstance(value, int) and value is not True}
        key = f"{kernel.__module__}.{kernel.__name__} {kinds} {sizes} {warps}"  # which factors there are takes little
        if key in self.done:
            return
        self.done.add(key)
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
        made = triton.compile(source, target=GPUTarget("cuda", self.gpu, 32), options={"num_warps": warps})
        told = {"kernel": kernel.__name__, "gpu": self.gpu, "types": kinds, "sizes": sizes, "warps": warps}
        print(json.dumps(told | _taken(made.asm["cubin"])))


def _taken(cubin: bytes) -> dict[str, int]:
    """Registers of a thread, and bytes of shared memory, of the stack, and that spill."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run([str(_CUOBJDUMP), "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    usage = dict(re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", told.stdout))
    return {name.lower(): int(value) for name, value in usage.items()}


def everything(dtype: torch.dtype) -> None:
    """Every operation, on tables as wide as the standard models'."""
    rows_of(CudaRows(), (600, 256), dtype, "relu", 0.5)
    folds_of(CudaFolds(), dtype, 32)
    moves_of(CudaMoves(), dtype)
    for name in ("sum", "max"):
        operation: Any = TritonKernel().operation(name)
        block, _ = block_of(9, 6, 30)
        for width in (100, 256):
            src, grad = torch.zeros(9, width, dtype=dtype), torch.zeros(6, width, dtype=dtype)
            held = torch.zeros(6, width, dtype=wide(dtype))
            if name == "max":
                winner = torch.zeros(6, width, dtype=torch.int32)
                operation.forward(block, src, grad.clone(), winner)
                operation.backward(block, grad, winner, src.clone())
                continue
            weight = held.new_zeros(30)
            operation.forward(block, src, held, weight=weight)
            operation.forward(block, src, held, held[:, 0].contiguous())
            operation.backward(block, grad, src.clone(), weight=weight)
            operation.backward(block, grad, src.clone(), held[:, 0].contiguous())
            operation.weight_gradient(block, src, grad, held.new_zeros(30))
    for name, width in (("gat", 100), ("gat", 128), ("gatv2", 100), ("dot", 64), ("one_table", 100)):
        attend(name, 4, width, dtype)
    attend("edges", 4, 32, dtype)


def attend(name: str, heads: int, width: int, dtype: torch.dtype) -> None:
    """Attention over 9 sources and 6 destinations, forward and backward; ``edges``: products with rows of edges."""
    held, (block, _) = wide(dtype), block_of(9, 6, 40)
    z, x, numbers = (torch.zeros(n, k, dtype=dtype) for n, k in ((9, heads * width), (6, heads * width), (6, heads)))
    el, er, att = torch.zeros(9, heads, dtype=held), numbers.to(held), torch.zeros(heads * width, dtype=held)
    sources = {"gat": (z, el), "gatv2": (z,), "one_table": (z,)}.get(name, (z, z))
    local = er if name == "gat" else x
    f, p = torch.zeros(40, 16, dtype=dtype), torch.zeros(6, heads * 16, dtype=dtype)
    edges = (f, p, p) if name == "edges" else ()
    operation: Any = TritonKernel().operation("dot" if name in ("one_table", "edges") else name)
    attention = Attention(heads, draw=Draw(3, 5, Purpose.ATTENTION_DROPOUT, 2, 0.4))
    running = RunningSoftmax.empty(z, 6, heads)
    if edges:
        running = dataclasses.replace(running, edge_out=p.to(held))
    inputs = AttentionInputs(sources, local, att if name == "gatv2" else None, edges=edges)
    operation.forward(block, attention, inputs, running)
    records = operation.destination_records(er if name == "gat" else None, running, x)
    into = AttentionGradients(
        tuple(table.clone() for table in sources), local.to(held), inputs.att, edges=(p.to(held), f.clone()) if edges else ()
    )
    operation.backward(block, attention, inputs, records, x, into)


def main(choices: list[str]) -> None:
    """choices: ``PRECISION:GPU``, such as ``fp32:90``."""
    warnings.simplefilter("ignore")
    for choice in choices:
        precision, gpu = choice.split(":")
        with patch.object(launch, "run", Compiler(int(gpu)).run), patch.object(launch, "LONGEST", 4):
            everything(ROW_DTYPES[precision])


if __name__ == "__main__":
    assert not launch.INTERPRETED, "the interpreter compiles nothing: unset TRITON_INTERPRET"
    main(sys.argv[1:])
