"""What launching and training must know of a model without knowing which one it is: stands in for the model settings' own word.

To be replaced by ``config.model.operations``, ``.draws_by_id``, ``.trains``, ``.has_embeddings`` and ``.build``.
"""

from __future__ import annotations

from sargnn.config import GatConfig, LabelPropagationConfig, ModelConfig, RgcnConfig, StackConfig
from sargnn.models import MODELS
from sargnn.models.inputs import GraphShape
from sargnn.models.stack import Stack
from sargnn.resolve import resolve


def operations(model: ModelConfig) -> tuple[str, ...]:
    """The kernel operations that its layers need."""
    from sargnn.engine.reducers import REDUCERS

    if isinstance(model, GatConfig):
        aggregator = "gatv2" if model.v2 else "gat"
    elif isinstance(model, RgcnConfig):
        aggregator = "rgcn"
    else:
        aggregator = getattr(model, "aggregator", "sum")
    return (resolve("aggregator", REDUCERS, aggregator).operation,)


def draws_by_id(model: ModelConfig) -> bool:
    """Whether dropout is drawn by node id."""
    return any(getattr(model, name, 0) for name in ("dropout", "input_dropout", "attn_dropout"))


def trains(model: ModelConfig) -> bool:
    """Whether it has something to learn, and so checkpoints."""
    return not isinstance(model, LabelPropagationConfig)


def has_embeddings(model: ModelConfig) -> bool:
    """Whether the last layer reads what another layer has computed."""
    return isinstance(model, StackConfig) and model.num_layers > 1


def build(model: ModelConfig, shape: GraphShape) -> Stack:
    """The model, with parameters drawn from torch's generator. Raises ``ConfigError``: it cannot work on such a graph."""
    stack: Stack = resolve("model", MODELS, model.name)(model, shape)
    return stack
