"""A GPU's kernels: whether they are right, how near they come to its memory's speed, and an attention layer beside PyG's.

Times are of device events, medians of repeated calls after one that compiles; bytes those that must move (``Operation``'s
``forward_rows`` and ``backward_rows``, ``sargnn.backends.cuda.attention``), set against those of a copy of 1 GB, read and
written, in the same process.

Letters: N nodes, E edges, K heads, D columns of a head, F features.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sargnn.backends.block import EdgeBlock
from sargnn.backends.choose import make_kernel
from sargnn.backends.device import device_of
from sargnn.backends.operations import Attention, AttentionGradients, AttentionInputs, RunningSoftmax
from sargnn.bf16 import ROW_DTYPES, wide
from sargnn.comm.group import Group
from sargnn.comm.lists import HaloLists, Piece
from sargnn.config.choices import DatasetSettings
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.reducers.gat import Gat
from sargnn.engine.serving import usable_device
from sargnn.errors import ConfigError
from sargnn.graph.dataset import open_dataset
from sargnn.graph.schema import Schema
from sargnn.partition.order import order_nodes
from sargnn.plan.layer_plan import LayerPlan, MergedRows, Shard
from sargnn.report.bench.settings import BenchGpuConfig, machine, open_folder
from sargnn.rng import Draw, Purpose
from sargnn.sources.prepare import prepare_dataset
from sargnn.tracking.memory import human_bytes

FILES = "gpu.json", "gpu.md"
_SLOPE, _DROPPED = 0.2, 0.4
_CHECKED_NODES, _CHECKED_EDGES = 3000, 60_000
_COPIED = 1 << 28
_ROWS_OF = {"gat": (1, 1), "gatv2": (1, 3), "dot": (2, 4)}
"""Rows that must move for each edge, forward and backward."""


def run(config: BenchGpuConfig) -> list[str]:
    """Measure; write ``gpu.json`` and ``gpu.md`` into ``bench_dir``, and return the page's lines."""
    device, folder = torch.device("cuda"), Path(config.bench_dir)
    place = usable_device(device.type)
    open_folder(folder, FILES)
    checks = [row for precision in ("fp64", "fp32", "bf16") for row in _checks(device, ROW_DTYPES[precision])]
    copied = _COPIED * 8 / _seconds(_copy(device), config.repeats)
    block = whole_block(config.dataset, config.store_dir, "locality")
    block.lay(lambda tensor: tensor.to(device))
    operations: list[dict[str, Any]] = []
    layers: list[dict[str, Any]] = []
    for precision in config.precisions:
        dtype = ROW_DTYPES[precision]
        for width in config.widths:
            operations += _sums(block, width, dtype, config.repeats)
        for heads in config.heads:
            for operation in ("gat", "gatv2", "dot"):
                operations += _attention(block, operation, heads, config.head_width, dtype, config.repeats)
    for heads in config.heads:
        layers += _layers(block, heads, config)
    about = machine() | {
        "gpu": ", ".join(place.lines()),
        "nodes": block.num_dst,
        "edges": block.num_edges,
        "copy_bytes_per_s": copied,
    }
    about["dataset"] = config.dataset.name
    content = {"about": about, "checks": checks, "operations": operations, "layers": layers}
    lines = page(content)
    for file, text in zip(FILES, (json.dumps(content, indent=1), "\n".join(lines)), strict=True):
        (folder / file).write_text(text + "\n")
    return lines


def whole_block(config: DatasetSettings, store_dir: str, order: str) -> EdgeBlock:
    """All edges of a dataset, prepared if need be, with its nodes as workers have them (``order`` is ``locality``) or as it has
    them (``original``). Raises ``ConfigError`` for a typed graph."""
    dataset = open_dataset(prepare_dataset(config, store_dir), verify=False)
    if dataset.schema.typed:
        raise ConfigError("Kernels are measured on homogeneous graphs.", hint="dataset.homogenize=true drops the types")
    n = dataset.num_nodes
    _, nodes = order_nodes(dataset, np.zeros(n, np.int32), 1, order)
    position = np.empty(n, np.int32)
    position[nodes] = np.arange(n, dtype=np.int32)
    destination = position[np.repeat(np.arange(n), np.diff(dataset.indptr))]
    source = position[np.asarray(dataset.indices)]
    edges = np.lexsort((source, destination))
    return EdgeBlock(torch.from_numpy(source[edges]), torch.from_numpy(destination[edges]), n, n)


def whole_plan(block: EdgeBlock) -> LayerPlan:
    in_degrees = torch.bincount(block.dst_per_edge(), minlength=block.num_dst)
    return LayerPlan(
        rank=0,
        world=1,
        schema=Schema.homogeneous(block.num_src),
        row_bounds=(0, block.num_src),
        out_bounds=(0, block.num_dst),
        node_ids=block.src_ids,
        in_degrees=in_degrees,
        relation_degrees=(in_degrees,),
        out_degrees=torch.bincount(block.src, minlength=block.num_src),
        lists=HaloLists((torch.empty(0, dtype=torch.int32),), (0,)),
        shards={Piece(0, 0): Shard.whole(0, block)},
        merged=None,
        merged_rows=MergedRows.lay_out((0, block.num_src), [(0, 0)]),
    )


def _seconds(call: Callable[[], Any], repeats: int) -> float:
    """Median of its calls after the first one."""
    call()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times)[repeats // 2]


def _copy(device: torch.device) -> Callable[[], Any]:
    source = torch.randn(_COPIED, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _checks(device: torch.device, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Relative errors of attention with dropout and of sums on a random graph, beside the reference in fp64 on the CPU."""
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(_CHECKED_NODES, (_CHECKED_EDGES,), generator=generator, dtype=torch.int32)
    dst = (_CHECKED_NODES * torch.rand(_CHECKED_EDGES, generator=generator) ** 3).to(torch.int32).sort().values  # hubs
    here = EdgeBlock(src, dst, _CHECKED_NODES, _CHECKED_NODES)
    there = EdgeBlock(src, dst, _CHECKED_NODES, _CHECKED_NODES)
    there.lay(lambda tensor: tensor.to(device))
    rows: list[dict[str, Any]] = []
    for operation, heads, width in (("gat", 4, 100), ("gatv2", 3, 47), ("dot", 2, 64)):
        tables = _tables(operation, _CHECKED_NODES, heads, width, generator)
        tables = {name: table.to(dtype).double() for name, table in tables.items()}
        want = _pass(make_kernel("reference"), here, operation, heads, tables)
        cast = {name: table.to(device, dtype) for name, table in tables.items()}
        got, again = (_pass(make_kernel("triton"), there, operation, heads, cast) for _ in range(2))
        errors = [float((a.double().cpu() - b).norm() / b.norm()) for a, b in zip(got, want, strict=True)]
        same = all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
        rows.append({"operation": operation, "dtype": str(dtype)[6:], "errors": errors, "same_bits": same})
    return rows


def _tables(operation: str, rows: int, heads: int, width: int, generator: torch.Generator) -> dict[str, Tensor]:
    """fp64, on the generator's device."""
    wide_rows, columns = (rows, heads * width), {"z": heads * width, "other": heads, "local": heads}
    if operation != "gat":
        columns |= {"other": heads * width, "local": heads * width}
    sizes = {name: (rows, count) for name, count in columns.items()} | {"grad": wide_rows, "att": (heads * width,)}
    where: Any = {"generator": generator, "device": generator.device, "dtype": torch.float64}
    return {name: torch.randn(*size, **where) for name, size in sizes.items()}


def _arguments(operation: str, heads: int, tables: dict[str, Tensor], *, drops: bool) -> tuple[Attention, AttentionInputs]:
    held = wide(tables["z"].dtype)
    draw = Draw(3, 5, Purpose.ATTENTION_DROPOUT, 2, _DROPPED) if drops else None
    if operation == "gat":
        inputs = AttentionInputs((tables["z"], tables["other"].to(held)), tables["local"].to(held))
    elif operation == "gatv2":
        inputs = AttentionInputs((tables["z"],), tables["local"], tables["att"].to(held))
    else:
        inputs = AttentionInputs((tables["z"], tables["other"]), tables["local"])
    return Attention(heads, _SLOPE, draw, 0.1), inputs


def _into(inputs: AttentionInputs) -> AttentionGradients:
    local = inputs.destinations
    att = None if inputs.att is None else torch.zeros_like(inputs.att)
    sources = tuple(torch.empty_like(table) for table in inputs.sources)
    return AttentionGradients(sources, torch.zeros_like(local, dtype=wide(local.dtype)), att)


def _pass(kernel: Any, block: EdgeBlock, name: str, heads: int, tables: dict[str, Tensor]) -> list[Tensor]:
    """Output and gradients of an attention, then of a sum of the same rows."""
    operation, sums = kernel.operation(name), kernel.operation("sum")
    attention, inputs = _arguments(name, heads, tables, drops=True)
    z, running = tables["z"], RunningSoftmax.empty(tables["z"], block.num_dst, heads)
    operation.forward(block, attention, inputs, running)
    running.out.masked_fill_((running.denominator == 0)[:, :1], 0)
    records = operation.destination_records(inputs.destinations if name == "gat" else None, running, tables["grad"])
    into = _into(inputs)
    operation.backward(block, attention, inputs, records, tables["grad"], into)
    total, back = torch.zeros_like(running.out), torch.empty_like(z)
    sums.forward(block, z, total)
    sums.backward(block, tables["grad"], back)
    gradients = [*into.sources, into.destinations, *([] if into.att is None else [into.att])]  # type: ignore[misc]
    return [running.out, *gradients, total, back]


def _sums(block: EdgeBlock, width: int, dtype: torch.dtype, repeats: int) -> list[dict[str, Any]]:
    """Sums of rows, written once, and their gradients; beside PyTorch's product of a CSR matrix."""
    device, operation = block.src.device, make_kernel("triton").operation("sum")
    src = torch.randn(block.num_src, width, device=device).to(dtype)
    out, back = torch.empty(block.num_dst, width, device=device, dtype=wide(dtype)), torch.empty_like(src)
    forward = _seconds(lambda: operation.forward(block, src, out, add=False), repeats)
    backward = _seconds(lambda: operation.backward(block, src, back), repeats)
    per_edge = block.num_edges * width * src.element_size()
    row = {"operation": "sum", "dtype": str(dtype)[6:], "width": width, "forward_s": forward, "backward_s": backward}
    row |= {"forward_bytes": per_edge + out.nbytes, "backward_bytes": per_edge + back.nbytes}
    if dtype == torch.float32:
        ones = torch.ones(block.num_edges, device=device)
        starts = torch.zeros(block.num_dst + 1, dtype=torch.int32, device=device)
        starts[1:] = torch.bincount(block.dst_per_edge(), minlength=block.num_dst).cumsum(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch calls its CSR tensors beta
            matrix = torch.sparse_csr_tensor(starts, block.src, ones, (block.num_dst, block.num_src), check_invariants=False)
        row["sparse_s"] = _seconds(lambda: matrix @ src, repeats)
    return [row]


def _attention(block: EdgeBlock, name: str, heads: int, width: int, dtype: torch.dtype, repeats: int) -> list[dict[str, Any]]:
    operation: Any = make_kernel("triton").operation(name)
    generator = torch.Generator(block.src.device).manual_seed(0)
    try:
        tables = {key: table.to(dtype) for key, table in _tables(name, block.num_dst, heads, width, generator).items()}
        attention, inputs = _arguments(name, heads, tables, drops=False)
        running, into = RunningSoftmax.empty(tables["z"], block.num_dst, heads), _into(inputs)

        def forward() -> None:
            running.max_score.fill_(-torch.inf)
            running.denominator.zero_()
            operation.forward(block, attention, inputs, running)

        seconds = _seconds(forward, repeats)
        running.out.masked_fill_((running.denominator == 0)[:, :1], 0)  # undefined so far
        own = inputs.destinations if name == "gat" else None
        records = operation.destination_records(own, running, tables["grad"])
        back = _seconds(lambda: operation.backward(block, attention, inputs, records, tables["grad"], into), repeats)
    except torch.OutOfMemoryError:
        return [{"operation": name, "dtype": str(dtype)[6:], "width": width, "heads": heads, "out_of_memory": True}]
    table = tables["z"].nbytes
    each, back_each = (count * block.num_edges * table // block.num_src for count in _ROWS_OF[name])
    row = {"operation": name, "dtype": str(dtype)[6:], "width": width, "heads": heads, "forward_s": seconds}
    return [row | {"backward_s": back, "forward_bytes": each + running.out.nbytes, "backward_bytes": back_each + 2 * table}]


def _layers(block: EdgeBlock, heads: int, config: BenchGpuConfig) -> list[dict[str, Any]]:
    """Of an attention layer, features to outputs and back, its linear maps included: seconds and peaks, ours and PyG's."""
    device, width, place = block.src.device, config.head_width, device_of(block.src.device)
    x = torch.randn(block.num_src, config.features, device=device, requires_grad=True)
    sides: dict[str, Callable[[], Tensor]] = {"ours": _our_layer(block, x, heads, width)}
    try:
        from torch_geometric.nn import GATConv

        conv = GATConv(config.features, width, heads, add_self_loops=False, bias=False).to(device)
        edges = torch.stack([block.src.long(), block.dst_per_edge()])
        sides["pyg"] = lambda: conv(x, edges)
    except ImportError:
        pass
    row: dict[str, Any] = {"heads": heads, "width": width}
    for side, forward in sides.items():
        try:
            grad = torch.randn(block.num_dst, heads * width, device=device)
            before = place.held_bytes()
            place.reset_peak()
            row[f"{side}_s"] = _seconds(lambda forward=forward, grad=grad: forward().backward(grad), config.repeats)  # type: ignore[misc]
            row[f"{side}_peak"] = place.peak_bytes() - before
        except torch.OutOfMemoryError:
            row[f"{side}_s"] = row[f"{side}_peak"] = None
        x.grad = None
    return [row]


def _our_layer(block: EdgeBlock, x: Tensor, heads: int, width: int) -> Callable[[], Tensor]:
    engine = Engine(Group.single(), EngineSettings(mode="sar", kernel="triton", device=x.device))
    plan, reducer = whole_plan(block), Gat(heads, _SLOPE)
    maps = nn.ModuleList(nn.Linear(x.shape[1], size, bias=False) for size in (heads * width, heads, heads)).to(x.device)

    def forward() -> Tensor:
        z, el, er = (layer(x) for layer in maps)
        return engine.aggregate(plan, reducer, (z, el), (er,))[0]

    return forward


def page(content: dict[str, Any]) -> list[str]:
    about, copied = content["about"], content["about"]["copy_bytes_per_s"]
    lines = [
        f"# {about['gpu']}",
        "",
        f"{about['dataset']}: {about['nodes']:,} nodes, {about['edges']:,} edges. A copy moves {copied / 1e9:.0f} GB/s, read "
        f"and written. {', '.join(f'{name} {version}' for name, version in about['versions'].items())}.",
        "",
        "| checked against fp64 on the CPU | dtype | relative errors: output, gradients, sums | twice the same bits |",
        "|---|---|---|---|",
    ]
    for row in content["checks"]:
        errors = ", ".join(f"{error:.1e}" for error in row["errors"])
        lines.append(f"| {row['operation']}, sum | {row['dtype']} | {errors} | {'yes' if row['same_bits'] else 'no'} |")
    lines += [
        "",
        "| operation | dtype | forward | of a copy's speed | backward | of a copy's speed | other |",
        "|---" * 7 + "|",
    ]
    for row in content["operations"]:
        heads = f"{row['heads']} x " if "heads" in row else ""
        cells = [f"{row['operation']} {heads}{row['width']}", row["dtype"]]
        if "out_of_memory" in row:
            lines.append(f"| {' | '.join([*cells, 'out of memory', '', '', '', ''])} |")
            continue
        for way in ("forward", "backward"):
            share = row[f"{way}_bytes"] / row[f"{way}_s"] / copied
            cells += [f"{1e3 * row[f'{way}_s']:.2f} ms", f"{share:.0%}"]
        cells.append(f"torch.sparse {1e3 * row['sparse_s']:.2f} ms" if "sparse_s" in row else "")
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| attention layer, forward and backward, fp32 | ours | PyG's GATConv |", "|---|---|---|"]
    lines += [f"| {row['heads']} x {row['width']} | {_side(row, 'ours')} | {_side(row, 'pyg')} |" for row in content["layers"]]
    return lines


def _side(row: dict[str, Any], side: str) -> str:
    if f"{side}_s" not in row:
        return "not installed"
    seconds: float | None = row[f"{side}_s"]
    return "out of memory" if seconds is None else f"{1e3 * seconds:.1f} ms, {human_bytes(row[f'{side}_peak'])}"
