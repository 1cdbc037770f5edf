"""Whether a run can use its graph's edge weights: said before anything is partitioned."""

from __future__ import annotations

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.check import Range
from sargnn.graph.edge_columns import WEIGHT

_WITHOUT = "dataset.edge_weights=false trains as if there were none"


def check_edge_weights(config: RunConfig, weights: Range | None) -> None:
    """The model, and Correct & Smooth, can use the weights.

    Args:
        weights: the smallest and the largest; None: the graph has none.

    Raises:
        ConfigError: one of them cannot; it says why, and what would work.
    """
    if weights is None or not config.dataset.edge_weights:
        return
    low, high = weights
    given = f"edge weights from {low:g} to {high:g}" if low < high else f"edge weights of {low:g}"
    reason = config.model.no_weights
    if reason is not None and config.model.operations:  # one that reads no edges reads no weights either
        raise ConfigError(
            f"The model '{config.model.title}' cannot use edge weights. {reason}",
            given=given,
            allowed="model=gcn, gat, rgcn, or sage with a sum or a mean; a module of your own reads graph.edata['w']",
            hint=_WITHOUT,
        )
    if low >= 0:
        return
    if config.model.divides_by_weights:
        raise ConfigError(
            f"The model '{config.model.title}' divides by sums of edge weights, and some are negative.",
            given=given,
            allowed="weights of 0 and more; model=sage model.aggregator=sum and model=gat take any",
            hint=_WITHOUT,
        )
    if config.smooth.name != "none":
        raise ConfigError(
            "Correct & Smooth divides by sums of edge weights, and some are negative.",
            given=f"smooth={config.smooth.name}, {given}",
            allowed="smooth=none, or weights of 0 and more",
            hint=_WITHOUT,
        )


def uses_edge_weights(config: RunConfig) -> bool:
    """Whether anything of the run reads them, where there are any."""
    return config.dataset.edge_weights and (bool(config.model.operations) or config.smooth.name != "none")


def used_columns(config: RunConfig) -> tuple[str, ...]:
    """Names of what edges carry and the run reads; the rest is not loaded."""
    return (WEIGHT,) if uses_edge_weights(config) else ()
