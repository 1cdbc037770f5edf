"""Optimizers, learning-rate schedules and gradient clipping.

PyTorch wraps an optimizer's methods in ones that import ``torch._dynamo`` when they are called first: 1.3 s and 80 MB of every
run. What they wrap is called here instead, so that every number is the same.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sargnn.backends.memory import Pool
from sargnn.comm.group import Group
from sargnn.config.groups import OptimConfig
from sargnn.errors import ConfigError
from sargnn.models.base import Model
from sargnn.resolve import resolve

_add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
_step = inspect.unwrap(torch.optim.Adam.step)
_NUMBERS_AT_ONCE = 1 << 18
"""Of a parameter that are updated at a time: PyTorch's formula makes two temporary tables of their size."""
_MOMENTS = ("exp_avg", "exp_avg_sq")
_ROWS = "rows"


class Adam(torch.optim.Adam):
    """``torch.optim.Adam``, a large table a run of rows at a time; every number is the same.

    Attributes:
        pool: what large tables' moments lie in, of which no more than a run need be in memory.
    """

    pool = Pool()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        _add_param_group(self, param_group)

    def begin(self, parameter: Tensor) -> None:
        """Give a parameter what the optimizer has of it before its first step."""
        moments = [zeros_like(parameter, self.pool) for _ in _MOMENTS]
        self.state[parameter] = {"step": torch.tensor(0.0), **dict(zip(_MOMENTS, moments, strict=True))}

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        """The tensors that are updated: parameters, gradients, two moments, the moments' maxima (none), steps."""
        for parameter in group["params"]:
            if parameter.grad is not None and not self.state[parameter]:
                self.begin(parameter)
        has_complex: bool = super()._init_group(group, *lists)
        if (rows := group.get(_ROWS)) is not None:
            *tables, steps = (tensors for tensors in lists if tensors)
            if rows.stop < len(tables[0][0]):  # the last run counts the parameter's step
                steps[0] = steps[0].clone()
            for tensors in tables:
                tensors[0] = tensors[0][rows]
        return has_complex

    def _in_runs(self, groups: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The groups without their large tables, and for each run of rows of these a group."""
        for group in groups:
            runs = [(p, _runs_of(p) if p.grad is not None else []) for p in group["params"]]
            yield group | {"params": [p for p, own in runs if not own]}
            for table, rows in ((table, rows) for table, own in runs for rows in own):
                yield group | {"params": [table], _ROWS: rows}
                for tensor in (table, *(self.state[table][name] for name in _MOMENTS)):
                    self.pool.rest(tensor[rows])

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        groups = self.param_groups
        self.param_groups = self._in_runs(groups)  # type: ignore[assignment]
        try:
            _step(self, closure)
        finally:
            self.param_groups = groups


class AdamW(Adam, torch.optim.AdamW):
    """``torch.optim.AdamW``, in the same way."""


def _runs_of(parameter: Tensor) -> list[slice]:
    """The rows of a large table that are updated at a time; none of another parameter, which is updated at once."""
    if parameter.dim() != 2:
        return []
    many = max(1, _NUMBERS_AT_ONCE // max(1, parameter.shape[1]))
    runs = [slice(first, min(first + many, len(parameter))) for first in range(0, len(parameter), many)]
    return runs if len(runs) > 1 else []


def zeros_like(parameter: Tensor, pool: Pool) -> Tensor:
    """What is kept beside a parameter, before the first step; ``pool`` has it of a large table."""
    if not _runs_of(parameter):
        return torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return pool.lasting(parameter.shape[0], parameter.shape[1], parameter.detach())


def check_decay(config: OptimConfig, model: Model) -> None:
    """Raises ``ConfigError`` where groups with a weight decay or a rate of their own are none of the model's."""
    groups = model.decay_groups()
    for setting, own in (("weight_decay_of", config.weight_decay_of), ("lr_of", config.lr_of)):
        for name in own or ():
            if name not in groups:
                raise ConfigError(
                    f"'optim.{setting}' names a group of parameters that the model has not.",
                    given=name,
                    allowed=list(groups) or "null: this model has no groups",
                )


def make_optimizer(
    config: OptimConfig, settings: list[dict[str, Any]], *, sharded: bool, pool: Pool | None = None
) -> torch.optim.Optimizer:
    """The optimizer of some groups of parameters, each with ``params``, ``lr`` and ``weight_decay``.

    With ``sharded`` some are rows of a larger table: one's own optimizer must then keep its state by row or as numbers.
    ``pool``: what large tables' moments lie in, but one's own optimizer's. Raises ``ConfigError`` where it does not, is no
    optimizer, or does not take what it is given.
    """
    if config.name != "custom":
        # PyTorch updates all parameters of a GPU at once, with temporary tables as large as they are: not of embeddings.
        kinds = {"adam": Adam, "adamw": AdamW}
        optimizer = kinds[config.name](settings, lr=config.lr, foreach=False if sharded else None)
        optimizer.pool = pool or Pool()
        return optimizer
    named = resolve("optimizer", {}, str(config.target))
    if not (isinstance(named, type) and issubclass(named, torch.optim.Optimizer)):
        allowed = "a class that extends torch.optim.Optimizer"
        raise ConfigError("'optim.target' does not name an optimizer.", given=config.target, allowed=allowed)
    probe = nn.Parameter(torch.zeros(3, 2))
    probe.grad = torch.zeros_like(probe)
    try:
        arguments = {"lr": config.lr, **(config.args or {})}
        tried = named([{"params": [probe]}], **arguments)
        tried.step()
        made: torch.optim.Optimizer = named(settings, **arguments)
    except Exception as error:  # whatever code outside raises
        raise ConfigError(
            "The optimizer that 'optim.target' names cannot be used.",
            given=f"{config.target} with lr, {', '.join(config.args or {}) or 'no further arguments'}: {str(error)[:200]}",
            allowed="one that takes parameters, lr and optim.args, and whose step() needs no argument",
        ) from error
    if "weight_decay" not in made.defaults and any(group["weight_decay"] for group in settings):
        raise ConfigError(
            "The optimizer that 'optim.target' names has no weight decay.",
            given=config.target,
            allowed="optim.weight_decay=0 optim.weight_decay_of=null",
        )
    check_state(config, tried.state[probe], probe, sharded=sharded)
    return made


def check_state(config: OptimConfig, state: dict[str, Any], parameter: Tensor, *, sharded: bool) -> None:
    """Raises ``ConfigError`` where what one's own optimizer keeps of a parameter cannot be in a checkpoint."""
    for key, value in state.items():
        if not (value is None or isinstance(value, Tensor | int | float)):
            raise ConfigError(
                "What an optimizer keeps of a parameter must be tensors and numbers, which checkpoints hold.",
                given=f"{config.target}: '{key}' is a {type(value).__name__}",
            )
        if sharded and isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
            raise ConfigError(
                "The model learns rows of nodes, which are spread over workers, and this optimizer's state is not by row.",
                given=f"{config.target}: '{key}' {list(value.shape)} of a table {list(parameter.shape)}",
                allowed="an optimizer whose state of a parameter has its shape, as those of torch.optim but Adafactor",
            )


def check_optimizer(config: OptimConfig) -> None:
    """Raises ``ConfigError`` where one's own optimizer cannot be used."""
    parameter = nn.Parameter(torch.zeros(1, 1))
    most = max([config.weight_decay, *(config.weight_decay_of or {}).values()])
    make_optimizer(config, [{"params": [parameter], "weight_decay": most}], sharded=False)


class Optimization:
    """Steps of all parameters that are trained.

    Attributes:
        sharded: those of which each rank has its own rows.
        replicated: the others, the same on every rank.
        optimizer: Adam (weight decay added to the gradient), AdamW (decoupled) or one's own; None where nothing is trained.
        averages: by ``id`` of each parameter its average a, with ``optim.average`` d: the first step's p, then
            d a + (1 - d) p, as ``torch.optim.swa_utils.get_ema_avg_fn``; empty before that.
    """

    def __init__(self, config: OptimConfig, epochs: int, model: Model, pool: Pool) -> None:
        self._config, self._epochs, self._pool = config, epochs, pool
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.sharded = model.inputs.sharded()
        own = {id(p) for p in self.sharded}
        self.replicated = [p for p in self.parameters if id(p) not in own]
        self.averages: dict[int, Tensor] = {}
        self._shares: list[float] = []  # of each group's rate in the schedule's
        self.optimizer: torch.optim.Optimizer | None = None
        if self.parameters:
            groups = model.decay_groups()
            decays = {id(p): decay for name, decay in (config.weight_decay_of or {}).items() for p in groups[name]}
            rates = {id(p): rate for name, rate in (config.lr_of or {}).items() for p in groups[name]}
            chosen: dict[tuple[float, float], list[nn.Parameter]] = {}
            for p in self.parameters:
                chosen.setdefault((decays.get(id(p), config.weight_decay), rates.get(id(p), config.lr)), []).append(p)
            settings = [{"params": some, "weight_decay": decay, "lr": rate} for (decay, rate), some in chosen.items()]
            self._shares = [rate / config.lr for _, rate in chosen]
            self.optimizer = make_optimizer(config, settings, sharded=bool(self.sharded), pool=pool)

    def set_rate(self, step: int, steps: int) -> float:
        """Set, and give, the learning rate of optimizer step ``step`` since the beginning, of ``steps`` an epoch."""
        rate = learning_rate(self._config, step, self._epochs, steps)
        for settings, share in zip(self.optimizer.param_groups if self.optimizer else (), self._shares, strict=True):
            settings["lr"] = rate * share
        return rate

    def step(self, group: Group) -> None:
        """Change the parameters by their gradients; with ``optim.clip`` scaled so that the norm of all, over all parameters and
        workers, is at most that.
        """
        if self._config.clip is not None and self.parameters:
            norm = (self._squares(self.replicated) + group.sum_(self._squares(self.sharded))).sqrt()
            factor = torch.where(norm > self._config.clip, self._config.clip / norm, 1.0)  # read by nobody but the device
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
        if self.optimizer is not None:
            self.optimizer.step()
        if self._config.average is not None:
            with torch.no_grad():
                for parameter in self.parameters:
                    first = id(parameter) not in self.averages
                    if first:
                        self.start_average(parameter)
                    for own, average in self._in_runs(parameter):
                        average.copy_(own) if first else average.lerp_(own, 1 - self._config.average)

    def start_average(self, parameter: nn.Parameter) -> None:
        """Make a parameter's average, which is to be filled."""
        self.averages[id(parameter)] = zeros_like(parameter, self._pool)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the parameters are their averages, where there are any."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter in self.parameters if self.averages else ():
            for own, average in self._in_runs(parameter):
                kept = own.clone()
                own.copy_(average)
                average.copy_(kept)

    def _in_runs(self, parameter: nn.Parameter) -> Iterator[tuple[Tensor, Tensor]]:
        """Some numbers at a time of a parameter and of its average."""
        tables = (table.detach().view(-1).split(_NUMBERS_AT_ONCE) for table in (parameter, self.averages[id(parameter)]))
        for run in zip(*tables, strict=True):
            yield run
            for tensor in run:
                self._pool.rest(tensor)

    def _squares(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        grads = [p.grad for p in parameters if p.grad is not None]
        runs = [run for grad in grads for run in ([grad[rows] for rows in _runs_of(grad)] or [grad])]
        each = [run.double().square().sum() for run in runs]
        return torch.stack(each).sum() if each else self.parameters[0].new_zeros((), dtype=torch.float64)


def learning_rate(config: OptimConfig, step: int, epochs: int, steps: int = 1) -> float:
    """The rate of optimizer step 0 <= ``step`` < ``epochs`` x ``steps``, of ``steps`` an epoch.

    With w steps of warm-up: lr (step + 1) / w while step < w. After that, t = step - w of the T steps that are left:
    lr (``constant``), lr (1 + cos(pi t / T)) / 2 (``cosine``) or lr ``step_factor`` ** floor(t / (``step_every`` epochs))
    (``step``).
    """
    warmup = config.warmup * steps
    if step < warmup:
        return config.lr * (step + 1) / warmup
    t = step - warmup
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1.0 + math.cos(math.pi * t / (epochs * steps - warmup)))
    if config.schedule == "step":
        return float(config.lr * config.step_factor ** (t // (config.step_every * steps)))
    return config.lr
