"""From a checkpoint to a file ``model.py`` and its parameters, and what of a model PyG's layers cannot say.

The settings of ``export.net.Net`` are read off the run's own model, built for its graph; parameters go by name from the
checkpoint, in the shapes that PyG's layers have.
"""

from __future__ import annotations

import inspect
import pprint
import re
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import nn

from sargnn.config.models import (
    AppnpSettings,
    ResGcnSettings,
    SgcSettings,
    StackSettings,
    TunedSettings,
)
from sargnn.config.run import RunConfig
from sargnn.engine.row_norm import RowNorm
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_columns import WEIGHT
from sargnn.graph.store import Store
from sargnn.models.base import Model
from sargnn.models.gat import GatLayer, GatV2Layer
from sargnn.models.gcn import GcniiLayer, GcnLayer
from sargnn.models.gin import GinLayer
from sargnn.models.inputs import TypedRows
from sargnn.models.rgat import RgatLayer
from sargnn.models.rgcn import RgcnLayer
from sargnn.models.sage import LstmLayer, PoolLayer, SageLayer
from sargnn.models.sgc import AppnpModel, SgcModel
from sargnn.models.stack import GraphLayer, MlpLayer, Stack
from sargnn.training.build import edge_width, make_model, shape_of, uses_edge_weights

MODEL, PARAMETERS = "model.py", "parameters.safetensors"
State = dict[str, np.ndarray]
Get = Callable[[str], np.ndarray]
"""A parameter of one layer by its name."""

_MARK = "exported from sargnn"
_HEADER = '''\
"""{title}, exported from sargnn: plain PyTorch with PyG's layers.

    net = load()          # parameters.safetensors beside this file
    logits = net(x, edge_index)

{reads}
"""
'''
_LOAD = '''

def load(file: str | None = None) -> Net:
    """The trained model, in evaluation mode and the precision of its parameters."""
    from pathlib import Path

    from safetensors.torch import load_file

    state = load_file(file or str(Path(__file__).with_name("parameters.safetensors")))
    net = Net(SETTINGS).to(next(value.dtype for value in state.values() if value.is_floating_point()))
    net.load_state_dict(state)
    return net.eval()
'''


def export(config: RunConfig, dataset: Dataset, labelled: int, checkpoint: Store, folder: Path) -> None:
    """Write the model of a run, which predicts the type ``labelled``, as ``model.py`` and ``parameters.safetensors``.

    Raises ``ConfigError`` where PyG's layers cannot say what the model does, or safetensors is not installed.
    """
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise ConfigError("Parameters are written as safetensors.", hint="pip install safetensors") from error
    there = folder / MODEL
    if there.exists() and _MARK not in there.read_text(errors="replace")[:500]:
        raise ConfigError("There is another file of this name.", given=str(there), hint="choose another folder: out=FOLDER")
    check(config, dataset)
    settings, state = described(config, dataset, make_model(config, shape_of(config, dataset, labelled)), checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(value) for name, value in state.items()}, folder / f".{PARAMETERS}.tmp")
    (folder / f".{MODEL}.tmp").write_text(_source(config, dataset, settings))
    for name in (PARAMETERS, MODEL):
        (folder / f".{name}.tmp").replace(folder / name)


class Arrays(Protocol):
    """What ``described`` reads of a checkpoint."""

    @property
    def files(self) -> Collection[str]:
        """``param/NAME``, ``average/NAME``, ``buffer/NAME``."""

    def array(self, name: str) -> np.ndarray:
        """One of them."""


def described(config: RunConfig, dataset: Dataset, model: Model, checkpoint: Arrays) -> tuple[dict[str, Any], State]:
    """The settings of ``export.net.Net``, and its parameters by name. ``model``: not trained, has passed ``check``."""
    weighted = WEIGHT in dataset.columns and uses_edge_weights(config)
    width = edge_width(dataset.columns, config)
    names = {name.removeprefix("param/") for name in checkpoint.files if name.startswith("param/")}

    def stored(name: str) -> np.ndarray:
        average, buffer = f"average/{name}", f"buffer/{name}"
        found_in = next(each for each in (average, f"param/{name}", buffer) if each in checkpoint.files)
        return np.array(checkpoint.array(found_in))

    state: State = {}
    settings: dict[str, Any] = {
        "form": "stack",
        "layers": [],
        "norm": "none",
        "norms": [],
        "offsets": list(dataset.schema.offsets),
        "residual_maps": [],
        "identities": [],
        "maps_only": [],
        "jumping": "last",
        "pre_norm": False,
        "activation": "relu",
        "dropout": 0.0,
        "input_dropout": 0.0,
        "steps": 0,
        "alpha": 0.0,
        "weighted": weighted,
        "edge_width": width,
        "self_loops": bool(config.add_self_loops),
        "loop_means": config.dataset.loop_features == "mean",
        "rows": None,
    }
    of_settings = config.model
    if isinstance(of_settings, StackSettings):
        settings |= {name: getattr(of_settings, name) for name in ("activation", "dropout", "input_dropout")}
    prefix = ""
    if isinstance(model, SgcModel) and isinstance(of_settings, SgcSettings):
        settings |= {"form": "sgc", "steps": of_settings.steps, "input_dropout": of_settings.input_dropout}
        settings["layers"] = [_linear(model.linear)]
        state |= {f"layers.0.map.{name}": stored(f"linear.{name}") for name in ("weight", "bias")}
    else:
        stack: Any = model
        if isinstance(model, AppnpModel) and isinstance(of_settings, AppnpSettings):
            settings |= {"form": "appnp", "steps": of_settings.steps, "alpha": of_settings.alpha}
            stack, prefix = model.mlp, "mlp."
        assert isinstance(stack, Stack) and isinstance(of_settings, StackSettings)
        if isinstance(of_settings, ResGcnSettings):
            settings["form"] = "resgcn"
        if isinstance(of_settings, TunedSettings):
            reversible = of_settings.blocks == "reversible"
            settings |= {"form": "reversible"} if reversible else {}
            settings |= {"jumping": of_settings.jumping, "pre_norm": of_settings.pre_norm}
            settings["maps_only"] = [0] if of_settings.input_linear and not reversible else []
        for number, layer in enumerate(stack.graph_layers):
            entry, own = _layer(layer, config, partial(_named, stored, f"{prefix}layers.{number}."))
            settings["layers"].append(entry)
            state |= {f"layers.{number}.{name}": value for name, value in own.items()}
        settings["norm"] = of_settings.norm
        several = len(dataset.schema.node_types) > 1 and settings["form"] == "stack"
        for number, norm in enumerate(stack.norms):
            if isinstance(norm, RowNorm):
                settings["norms"].append([number, int(norm.weight.shape[-1])])
                own = _norm(of_settings.norm, partial(_named, stored, f"{prefix}norms.{number}."), dataset if several else None)
                state |= {f"norms.{number}.{name}": value for name, value in own.items()}
        residual_layers = getattr(stack, "_residual_layers", range(len(stack.residuals)))
        for number, residual in enumerate(stack.residuals):
            if isinstance(residual, nn.Linear):
                settings["residual_maps"].append([number, residual.in_features, residual.out_features])
                state[f"residuals.{number}.weight"] = stored(f"{prefix}residuals.{number}.weight")
            elif number in residual_layers:
                settings["identities"].append(number)
    _rows(model, dataset, names, stored, settings, state)
    return settings, state


def check(config: RunConfig, dataset: Dataset) -> None:
    """Raises ``ConfigError`` where PyG's layers cannot say what the model does."""
    weighted = WEIGHT in dataset.columns and uses_edge_weights(config)
    name, model = config.model.name, config.model
    if not model.trains:
        raise ConfigError(f"'{name}' has no parameters that could be exported.", given=f"model={name}")
    if config.predicts_pairs:
        raise ConfigError("A decoder of links or edges is not exported.", given=f"task={config.task}", allowed="task=nodes")
    if model.target is not None:
        given = f"model.target={model.target}"
        raise ConfigError("Your own module is plain PyTorch already.", given=given, hint="its checkpoint has its state_dict")
    unsaid = {
        "symmetric_norm": ("model.symmetric_norm=true", getattr(model, "symmetric_norm", False)),
        "lstm": ("model.aggregator=lstm", getattr(model, "aggregator", None) == "lstm"),
        "own aggregator": (
            f"model.aggregator={getattr(model, 'aggregator', '')}",
            ":" in str(getattr(model, "aggregator", "")),
        ),
        "weights": ("edge weights", weighted and name in ("gat", "rgcn", "rgat")),
        "loops": ("self-loops of a typed graph", config.add_self_loops and len(dataset.schema.relations) > 1),
        "edges": ("edge weights and features", weighted and name == "gin" and bool(dataset.columns.width)),
    }
    for given, is_so in unsaid.values():
        if is_so:
            raise ConfigError("PyG's layers have no place for what this model reads.", given=f"model={name}, {given}")


def _linear(layer: nn.Linear) -> dict[str, Any]:
    arguments = {"inputs": layer.in_features, "outputs": layer.out_features, "bias": layer.bias is not None}
    return {"kind": "Linear", "arguments": arguments}


def _layer(layer: GraphLayer, config: RunConfig, get: Get) -> tuple[dict[str, Any], State]:
    """A layer's entry in the settings, and its parameters as PyG names them."""
    a, b = layer.in_width, layer.out_width
    if isinstance(layer, MlpLayer):
        state = {"map.weight": get("linear.weight")}
        return _linear(layer.linear), state | ({} if layer.linear.bias is None else {"map.bias": get("linear.bias")})
    if isinstance(layer, SageLayer):
        assert not isinstance(layer, LstmLayer)
        aggregator = "pool" if isinstance(layer, PoolLayer) else getattr(config.model, "aggregator", "mean")
        bias = layer.self.bias is not None
        state = {"conv.lin_l.weight": get("neigh.weight"), "conv.lin_r.weight": get("self.weight")}
        state |= {"conv.lin_l.bias": get("self.bias")} if bias else {}
        if aggregator == "pool":
            state |= {f"conv.lin.{name}": get(f"pool.{name}") for name in ("weight", "bias")}
        return _entry("Sage", state, inputs=a, outputs=b, bias=bias, aggregator=aggregator)
    if isinstance(layer, GcnLayer):
        bias = layer.linear.bias is not None
        state = {"conv.lin.weight": get("linear.weight")} | ({"conv.bias": get("linear.bias")} if bias else {})
        return _entry("Gcn", state, inputs=a, outputs=b, bias=bias)
    if isinstance(layer, GcniiLayer):
        settings: Any = config.model
        number = round(settings.theta / (np.exp(layer.beta) - 1))
        state = {"conv.weight1": get("weight").T}
        return _entry("Gcnii", state, width=a, alpha=settings.alpha, theta=settings.theta, layer=number)
    if isinstance(layer, GatLayer | GatV2Layer):
        return _gat(layer, get)
    if isinstance(layer, GinLayer):
        state, maps, place = {}, list(layer.maps), 0
        for number, linear in enumerate(maps):
            assert isinstance(linear, nn.Linear)
            state |= {f"conv.nn.{place}.weight": get(f"maps.{number}.weight")}
            state |= {} if linear.bias is None else {f"conv.nn.{place}.bias": get(f"maps.{number}.bias")}
            if number < len(layer.norms):
                norm = getattr(config.model, "norm", "none")
                own = _norm(norm, partial(_named, get, f"norms.{number}."), None)
                state |= {f"conv.nn.{place + 1}.{name}": value for name, value in own.items()}
            place += 2 + (number < len(layer.norms))
        learned = isinstance(layer.eps, nn.Parameter)
        state["conv.eps"] = get("eps").reshape(1) if learned else np.array([layer.eps], get("maps.0.weight").dtype)
        if layer.edge_map is not None:
            state |= {f"conv.lin.{name}": get(f"edge_map.{name}") for name in ("weight", "bias")}
        widths = [a, *(int(linear.out_features) for linear in maps if isinstance(linear, nn.Linear))]
        biases = [linear.bias is not None for linear in maps if isinstance(linear, nn.Linear)]
        edges = 0 if layer.edge_map is None else layer.edge_map.in_features
        more = {
            "norm": getattr(config.model, "norm", "none"),
            "activation": layer.activation,
            "eps": float(state["conv.eps"][0]),
        }
        return _entry("Gin", state, widths=widths, biases=biases, edge_width=edges, **more)
    if isinstance(layer, RgcnLayer):
        bases = None if layer.coefficients is None else int(layer.coefficients.shape[1])
        state = {"conv.weight": get("weight"), "conv.root": get("loop")}
        state |= {} if bases is None else {"conv.comp": get("coefficients")}
        state |= {} if layer.bias is None else {"conv.bias": get("bias")}
        return _entry("Rgcn", state, inputs=a, outputs=b, relations=layer.relations, bases=bases, bias=layer.bias is not None)
    if isinstance(layer, RgatLayer):
        return _rgat(layer, get)
    raise ConfigError("The layer has no like in PyG.", given=type(layer).__name__)


def _entry(kind: str, state: State, **arguments: Any) -> tuple[dict[str, Any], State]:
    return {"kind": kind, "arguments": arguments}, state


def _gat(layer: GatLayer | GatV2Layer, get: Get) -> tuple[dict[str, Any], State]:
    config, heads, width = layer.config, layer.heads, layer.width
    state: State = {}
    if isinstance(layer, GatV2Layer):
        for ours, theirs in (("src", "lin_l"), ("dst", "lin_r")):
            state |= {f"conv.{theirs}.{name}": get(f"{ours}.{name}") for name in ("weight", "bias")}
        state["conv.att"] = get("attn")[None]
    else:
        state["conv.lin.weight"], state["conv.att_src"] = get("linear.weight"), get("attn_src")[None]
        state["conv.att_dst"] = np.zeros_like(get("attn_src"))[None] if layer.attn_dst is None else get("attn_dst")[None]
        if layer.edge_map is not None:
            state["conv.att_edge"] = get("attn_edge")[None]
    if layer.edge_map is not None:
        state["conv.lin_edge.weight"] = get("edge_map.weight")
    if layer.residual is not None:  # PyG's last layer adds one map behind the mean over heads
        weight = get("residual.weight")
        state["conv.res.weight"] = weight.reshape(heads, width, -1).mean(0) if layer.last else weight
    bias = layer.bias is not None or isinstance(layer, GatV2Layer)  # of GATv2 it goes with those of its maps
    if bias:
        outputs = width if layer.last else heads * width
        state["conv.bias"] = np.zeros(
            outputs, get("attn" if layer.reads_out_degrees is False and config.v2 else "attn_src").dtype
        )
    if layer.bias is not None:
        state["conv.bias"] = get("bias")
    return _entry(
        "Gat",
        state,
        inputs=layer.in_width,
        width=width,
        heads=heads,
        last=layer.last,
        bias=bias,
        v2=config.v2,
        residual=layer.residual is not None,
        slope=config.negative_slope,
        dropout=config.attn_dropout,
        edge_width=layer.edge_width if layer.edge_map is not None else 0,
    )


def _rgat(layer: RgatLayer, get: Get) -> tuple[dict[str, Any], State]:
    config, weight = layer.config, get("weight")
    state = {"loop.weight": get("loop")} | ({} if layer.bias is None else {"bias": get("bias")})
    for r in range(len(weight)):
        state |= {f"convs.{r}.lin.weight": weight[r]}
        state |= {f"convs.{r}.att_{end}": get(f"attn_{end}")[r][None] for end in ("src", "dst")}
        if layer.edge_width:
            state |= {f"convs.{r}.lin_edge.weight": get("edge_weight")[r], f"convs.{r}.att_edge": get("attn_edge")[r][None]}
    return _entry(
        "Rgat",
        state,
        inputs=layer.in_width,
        width=layer.width,
        heads=layer.heads,
        last=layer.last,
        bias=layer.bias is not None,
        relations=len(weight),
        slope=config.negative_slope,
        dropout=config.attn_dropout,
        edge_width=layer.edge_width,
    )


def _named(get: Get, prefix: str, name: str) -> np.ndarray:
    return get(prefix + name)


def _norm(norm: str, get: Get, typed: Dataset | None) -> State:
    """A norm's parameters; ``typed``: there is one for each node type."""
    names = ("weight", "bias", *(("running_mean", "running_var") if norm == "batch" else ()))
    counted = {"num_batches_tracked": np.array(0)} if norm == "batch" else {}
    if typed is None:
        return {name: get(name) for name in names} | counted
    state: State = {}
    for t in range(len(typed.schema.node_types)):
        state |= {f"norms.{t}.{name}": value for name, value in ({name: get(name)[t] for name in names} | counted).items()}
    return state


def _rows(model: Model, dataset: Dataset, names: set[str], stored: Get, settings: dict[str, Any], state: State) -> None:
    """What the first layer reads, where that is not the features alone."""
    inputs = model.inputs
    if not isinstance(inputs, TypedRows):
        return
    schema = dataset.schema
    counts = [schema.count(t) for t in range(len(schema.node_types))]
    settings["rows"] = {"counts": counts, "widths": list(dataset.feature_widths), "width": inputs.width}
    for name in names:
        if match := re.fullmatch(r"(?:mlp\.)?inputs\.(embeddings|maps)\.(\d+)_[^.]*(\.weight)?", name):
            kind, number = match[1], int(match[2])
            theirs = f"rows.learned.{number}" if kind == "embeddings" else f"rows.maps.{number}.weight"
            state[theirs] = stored(name)


def _source(config: RunConfig, dataset: Dataset, settings: dict[str, Any]) -> str:
    """The text of ``model.py``: the classes that the model needs, its settings, and what loads its parameters."""
    from sargnn.export import net

    schema = dataset.schema
    kinds = {layer["kind"] for layer in settings["layers"]}
    norms = settings["norm"] != "none"
    helpers = [net.TypedNorm, net.norm_of] if norms or "Gin" in kinds else []
    helpers += [net.Rows] if settings["rows"] is not None else []
    used = [kind for kind in net.KINDS if kind.__name__ in kinds]
    parts = [inspect.getsource(part).rstrip() for part in (*used, *helpers, net.Net)]
    imports = [line for line in inspect.getsource(net).splitlines() if line.startswith(("import ", "from "))]
    lines = [f"node types: {', '.join(schema.node_types)}", f"relations: {_relations(dataset)}"] if schema.typed else []
    classes = dataset.origin.classes if dataset.origin is not None else ()
    lines += [f"classes: {', '.join(classes)}"] if classes else []
    prepared = ("normalize_features", "add_inverse_edges", "homogenize", "edge_categories")
    done = {name: value for name in prepared if (value := getattr(config.dataset, name, None))}
    lines += [f"x and edges as they are after: {done}"] if done else []
    for table, columns in (dataset.origin.encodings if dataset.origin is not None else {}).items():
        lines += [f"columns of {table}: {dict(columns)}"]
    header = _HEADER.format(title=config.name, reads="\n".join(lines) or "x: [N, F] features; edge_index: [2, E]")
    values = pprint.pformat(settings, width=120, sort_dicts=False)
    table = f"KINDS = [{', '.join(kind.__name__ for kind in used)}]\nSETTINGS = {values}"
    stubs = "" if helpers else "\n\ndef norm_of(*_: Any) -> list[nn.Module]:\n    return []\n"
    stubs += "" if settings["rows"] is not None else "\n\nRows: Any = None\n"
    body = "\n\n\n".join([header + "\n".join(imports), *parts, table])
    return body + stubs + _LOAD


def _relations(dataset: Dataset) -> str:
    types = dataset.schema.node_types
    return ", ".join(f"{types[r.source]} {r.name} {types[r.destination]}" for r in dataset.schema.relations)
