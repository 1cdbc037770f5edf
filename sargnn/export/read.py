"""The way back: parameters that PyG's or DGL's layers learned elsewhere, as a checkpoint that a run can start from.

What ``export.write`` gives is turned around. The run's own model is described once, with the place of each of its numbers in
the stead of the number; so each number of the file finds its place, whatever ``write`` transposes or renames. Of a file that
``sargnn export`` has not written, convolutions, norms and linear maps become those of the model in the file's order.

A bias b that the model has no place for is taken over without a change of what is computed: in front of a batch norm it goes
off the running mean, and of GATv2, whose weights add up to 1, b + z_j is what travels and x_i - b what is scored. Where the
file has none it is 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.export.write import check, described
from sargnn.graph.dataset import Dataset
from sargnn.models.base import Model

State = dict[str, np.ndarray]
_FIRST = 1 << 32
"""The place of the first number; constants of ``described`` are smaller."""
_COUNTER = "num_batches_tracked"
"""Of a batch norm of PyTorch's; batch norms here have no use for it."""
_SHOWN = 5
_SAFE = ".safetensors"
_HOW = "torch.save(net.state_dict(), FILE)"
_PARTS = "lin|lin_l|lin_r|lin_src|lin_dst|lin_edge|res|res_fc|fc|fc_self|fc_neigh|fc_pool|fc_src|fc_dst"
_LEAF = re.compile(
    rf"(?P<module>.+?)\.(?P<leaf>(?:{_PARTS})\.\w+|(?:nn|apply_func)\..+|[a-zA-Z]\w*)",
)
_RENAMED: dict[str, dict[str, str]] = {
    "Sage": {
        "fc_neigh.weight": "lin_l.weight",
        "fc_self.weight": "lin_r.weight",
        "fc_self.bias": "lin_l.bias",
        "bias": "lin_l.bias",
        "fc_pool.weight": "lin.weight",
        "fc_pool.bias": "lin.bias",
    },
    "Gcn": {"weight": "lin.weight"},
    "Gat": {
        "lin_src.weight": "lin.weight",
        "fc.weight": "lin.weight",
        "attn_l": "att_src",
        "attn_r": "att_dst",
        "attn": "att",
        "res_fc.weight": "res.weight",
        "res_fc.bias": "bias",
        "fc_src.weight": "lin_l.weight",
        "fc_src.bias": "lin_l.bias",
        "fc_dst.weight": "lin_r.weight",
        "fc_dst.bias": "lin_r.bias",
    },
}
"""Kind of a layer in ``export.net`` -> what another library, or another version, calls its parameters -> what PyG does."""


def read(config: RunConfig, dataset: Dataset, model: Model, file: Path) -> State:
    """A checkpoint's arrays, ``param/NAME`` and ``buffer/NAME``, for a run on a dataset that is to start from them.

    Args:
        model: the run's, not trained.
        file: a state_dict, ``.safetensors`` or by ``torch.save``.

    Raises ``ConfigError``: it cannot be read, or does not fit the model; the first names that do not are listed.
    """
    if config.predicts_pairs:
        raise ConfigError("Parameters are read for labels of nodes.", given=f"task={config.task}", allowed="task=nodes")
    theirs = _load(file)
    shapes = {f"param/{name}": tuple(parameter.shape) for name, parameter in model.named_parameters()}
    shapes |= {f"buffer/{name}": tuple(buffer.shape) for name, buffer in model.named_buffers()}
    shapes |= {f"param/inputs.{name}": shape for name, shape in model.inputs.whole_tables().items()}
    if config.model.target is not None:
        return _of_module(shapes, theirs, file)
    theirs = {name: value for name, value in theirs.items() if not name.endswith(_COUNTER)}
    dtype, places = np.result_type(*{value.dtype for value in theirs.values()}), _Places(shapes)
    check(config, dataset)
    settings, described_state = described(config, dataset, model, places)
    wanted = {name: where for name, where in described_state.items() if not name.endswith(_COUNTER)}
    given = theirs if set(theirs) >= set(wanted) else _arranged(theirs, settings, wanted, file)
    wrong = []
    for name, where in wanted.items():
        ours, value = where >= _FIRST, given.pop(name, None)
        if value is None:
            wrong += [f"{name}: none there"] if ours.any() else []
        elif value.shape != where.shape:
            wrong.append(f"{name}: {list(value.shape)} there, {list(where.shape)} here")
        elif np.any(value[~ours] != where[~ours].astype(value.dtype)):
            wrong.append(f"{name}: this model has no place for it")
        else:
            places.put(where[ours], value[ours])
    wrong += [f"{name}: this model has no place for it" for name in given]
    wrong += [f"{name}: it cannot be told from the file" for name in places.missing()] if not wrong else []
    _raise(wrong, file)
    return places.arrays(dtype)


class _Places:
    """In the stead of a checkpoint: each number is the place that it has, counted through all arrays."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.files, self._starts, end = shapes, {}, 0
        for name, shape in shapes.items():
            self._starts[name] = end
            end += int(np.prod(shape))
        self._numbers, self._known = np.zeros(end), np.zeros(end, bool)

    def array(self, name: str) -> np.ndarray:
        shape, start = self.files[name], self._starts[name]
        return np.arange(start, start + int(np.prod(shape)), dtype=np.float64).reshape(shape) + _FIRST

    def put(self, where: np.ndarray, numbers: np.ndarray) -> None:
        whole = where == np.rint(where)  # a mean over heads is no place
        places = where[whole].astype(np.int64) - _FIRST
        self._numbers[places], self._known[places] = numbers[whole], True

    def _of(self, numbers: np.ndarray, name: str) -> np.ndarray:
        start = self._starts[name]
        return numbers[start : start + int(np.prod(self.files[name]))]

    def missing(self) -> Iterator[str]:
        """Arrays with numbers that nobody has put."""
        return (name.partition("/")[2] for name in self.files if not self._of(self._known, name).all())

    def arrays(self, dtype: np.dtype) -> State:
        return {name: self._of(self._numbers, name).reshape(shape).astype(dtype) for name, shape in self.files.items()}


@dataclass
class _Module:
    name: str
    leaves: State

    def __post_init__(self) -> None:
        (part, *others) = {leaf.rpartition(".")[0] for leaf in self.leaves}
        if part and not others and f"{part}.bias" in self.leaves:  # no convolution is a part alone: a linear map called so
            self.name, self.leaves = f"{self.name}.{part}", {leaf.rpartition(".")[2]: v for leaf, v in self.leaves.items()}

    @property
    def kind(self) -> str:
        weight = self.leaves.get("weight")
        if set(self.leaves) - {"weight", "bias", "running_mean", "running_var"} or weight is None:
            return "convolution"
        return "norm" if weight.ndim == 1 else "map"


def _arranged(theirs: State, settings: dict[str, Any], wanted: State, file: Path) -> State:
    """The file's parameters by the names of ``described``."""
    leaves: dict[str, State] = {}
    for name, value in theirs.items():
        match = _LEAF.fullmatch(name)
        module, leaf = (match["module"], match["leaf"]) if match else ("", name)
        leaves.setdefault(module, {})[leaf] = value
    modules = [_Module(name, own) for name, own in leaves.items()]
    of_kind = {kind: [each for each in modules if each.kind == kind] for kind in ("convolution", "norm", "map")}
    layers = [layer["kind"] for layer in settings["layers"]]
    if "Gcn" in layers and not of_kind["convolution"]:  # DGL's GraphConv is a weight and a bias
        of_kind["convolution"], of_kind["map"] = of_kind["map"], []
    wants = {
        "convolution": [(f"layers.{k}.conv.", kind) for k, kind in enumerate(layers) if kind != "Linear"],
        "map": [(f"layers.{k}.map.", kind) for k, kind in enumerate(layers) if kind == "Linear"],
        "norm": [(f"norms.{k}.", "Norm") for k, _ in settings["norms"]],
    }
    given: State = {}
    for kind, places in wants.items():
        if len(places) != len(of_kind[kind]):
            names = ", ".join(each.name for each in of_kind[kind]) or "none"
            raise ConfigError(
                f"The file has another number of {kind}s than the model.",
                given=f"{file.name}: {names}",
                allowed=f"{len(places)}, as the settings of 'model' have it",
                hint="sargnn export names parameters as this model has them" if settings["residual_maps"] else None,
            )
        if file.suffix == _SAFE and len({re.sub(r"\d+", "", each.name) for each in of_kind[kind]}) > 1:
            names = ", ".join(each.name for each in of_kind[kind])
            raise ConfigError(
                f"Safetensors have no order, and the {kind}s' names do not give one.",
                given=f"{file.name}: {names}",
                allowed="names that differ by a number",
                hint=_HOW,
            )
        for (prefix, layer), module in zip(places, of_kind[kind], strict=True):
            given |= _perceptron(prefix, module, wanted) if layer == "Gin" else _renamed(prefix, layer, module)
    for number, layer in enumerate(settings["layers"]):
        _fit_bias(given, wanted, number, layer, loops=settings["self_loops"], folds=settings["form"] == "stack")
    return given


def _renamed(prefix: str, layer: str, module: _Module) -> State:
    renamed: State = {}
    for leaf, value in module.leaves.items():
        name = _RENAMED.get(layer, {}).get(leaf, leaf)
        source = module.leaves.get("lin_src.weight")
        if leaf != "lin_dst.weight" or source is None or not np.array_equal(value, source):  # PyG's GAT once had it twice
            renamed[prefix + name] = value.T if (layer, leaf) == ("Gcn", "weight") else value
    return renamed


def _perceptron(prefix: str, module: _Module, wanted: State) -> State:
    """A GIN convolution, whose maps and norms are called in as many ways as there are to make a perceptron."""
    theirs: dict[str, State] = {}
    given: State = {}
    for leaf, value in module.leaves.items():
        inner, _, last = leaf.rpartition(".")
        if inner.startswith(("nn", "apply_func")):
            theirs.setdefault(inner, {})[last] = value
        else:
            given[prefix + leaf] = value
    ours: dict[str, State] = {}
    for name in sorted((name for name in wanted if name.startswith(f"{prefix}nn.")), key=_by_number):
        ours.setdefault(name.rpartition(".")[0], {})[name.rpartition(".")[2]] = wanted[name]
    for is_norm in (False, True):
        parts = [own for own in theirs.values() if (own["weight"].ndim == 1) is is_norm]
        places = [place for place, own in ours.items() if (own["weight"].ndim == 1) is is_norm]
        names = places if len(places) == len(parts) else [f"{prefix}nn, part {k}" for k in range(len(parts))]
        for place, own in zip(names, parts, strict=True):
            given |= {f"{place}.{last}": value for last, value in own.items()}
    maps = [place for place, own in ours.items() if own["weight"].ndim == 2]
    for place, behind in zip(maps, [place for place in ours if place not in maps], strict=False):
        if f"{place}.bias" not in wanted:
            _fold(given, f"{place}.bias", f"{behind}.running_mean")
    return given


def _fold(given: State, name: str, mean: str) -> bool:
    """A bias that the model has no place for goes off the running mean behind it; whether there are both."""
    there = name in given and mean in given
    if there:
        given[mean] = given[mean] - given.pop(name)
    return there


def _fit_bias(given: State, wanted: State, number: int, layer: dict[str, Any], *, loops: bool, folds: bool) -> None:
    """A layer's last bias where it or the model has none, or one for all heads; see the module's text. ``loops``: every node
    has an edge from itself. ``folds``: what stands behind the layer reads its rows alone, no stream that they are added to.
    """
    prefix = f"layers.{number}."
    name = {"Sage": "conv.lin_l.bias", "Linear": "map.bias"}.get(layer["kind"], "conv.bias")
    if layer["kind"] == "Gin":
        last = max(
            (key for key in given if key.startswith(f"{prefix}conv.nn.")), key=_by_number, default=f"{prefix}conv.nn.0.weight"
        )
        name = last.removeprefix(prefix).rpartition(".")[0] + ".bias"
    name = prefix + name
    bias, where = given.get(name), wanted.get(name)
    if bias is None:
        if where is not None:  # made without one
            given[name] = np.zeros(where.shape)
        return
    if where is not None and (where >= _FIRST).any():
        if bias.shape != where.shape and bias.size % max(1, where.size) == 0:  # DGL's, of each head of the last layer
            given[name] = bias.reshape(-1, *where.shape).mean(0)
        return
    if folds and _fold(given, name, f"norms.{number}.running_mean"):
        return
    left, right = f"{prefix}conv.lin_l.bias", f"{prefix}conv.lin_r.bias"
    if layer["kind"] == "Gat" and right in given and loops and bias.shape == given[left].shape:
        given[left], given[right] = given[left] + bias, given[right] - bias
        del given[name]


def _of_module(shapes: dict[str, tuple[int, ...]], theirs: State, file: Path) -> State:
    """Of a module of the user's: names are those of its state_dict, ours with something in front."""
    matched, wrong = {}, []
    for name, shape in shapes.items():
        parts = name.partition("/")[2].split(".")
        same = next((own for k in range(len(parts)) if (own := ".".join(parts[k:])) in theirs), None)
        value = None if same is None else theirs.pop(same)
        if value is None or value.shape != shape:
            there = "none" if value is None else list(value.shape)
            wrong.append(f"{'.'.join(parts)}: {there} there, {list(shape)} here")
        else:
            matched[name] = value
    wrong += [f"{name}: the module has none" for name in theirs]
    _raise(wrong, file)
    return matched


def _raise(wrong: list[str], file: Path) -> None:
    if not wrong:
        return
    more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
    lines = "".join(f"\n    {line}" for line in wrong[:_SHOWN] + more)
    raise ConfigError(
        f"The parameters do not fit the model.{lines}",
        given=str(file),
        hint="dataset and model are those of this command: the same widths, layers, norms and heads as where it was trained",
    )


def _load(file: Path) -> State:
    """A file's state_dict, in its order; of safetensors, which have none, by name with numbers in theirs."""
    try:
        import torch

        if file.suffix == _SAFE:
            from safetensors.torch import load_file

            content = load_file(file)
            read = {name: content[name] for name in sorted(content, key=_by_number)}
        else:
            read = torch.load(file, map_location="cpu", weights_only=True)
    except ImportError as error:
        raise ConfigError("Reading this file needs safetensors.", given=str(file), hint="pip install safetensors") from error
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"The parameters cannot be read: {first}", given=str(file), hint=_HOW) from error
    if isinstance(read, dict):
        named = (read.get(key) for key in ("state_dict", "model_state_dict", "model"))
        read = next((inner for inner in named if isinstance(inner, dict)), read)
    if not isinstance(read, dict) or not read or not all(isinstance(value, torch.Tensor) for value in read.values()):
        raise ConfigError("The file holds no state_dict.", given=str(file), hint=_HOW)
    arrays = {str(name): value.detach() for name, value in read.items()}
    return {name: (value.float() if value.dtype == torch.bfloat16 else value).numpy() for name, value in arrays.items()}


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
