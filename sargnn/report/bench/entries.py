"""What a table measures, in which order."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

from sargnn.config.choices import ModeConfig
from sargnn.config.groups import LinksConfig, Precision, PreloadConfig
from sargnn.config.run import RunConfig
from sargnn.interop.dgl import NOT_INSTALLED, is_installed
from sargnn.report.bench.settings import DGL_MODELS, FORMS, FREE_OF_LINKS, PYG_MODELS, SAMPLED_MODELS, BenchTableConfig
from sargnn.resolve import resolve

STOCK, HUGE = "stock DGL", "stock DGL, huge pages"
IN_BF16 = "stock DGL, bf16, huge pages"
PYG = {form: f"stock PyG, {called}" for form, called in FORMS.items()}
"""The form of a graph that PyG is given -> its row."""
LIMITS = "limits"
BEFORE, AFTER = f"{LIMITS} before", f"{LIMITS} after"
NOT_STATIC, ONE_PROCESS, PROFILED = ", not static", ", one process", ", profiled"
Figures = dict[str, Any]
_CHANGES_NOTHING = ("store_dir", "run_dir", "run_name", "tracking", "prepare")


@dataclass(frozen=True)
class Case:
    """One model of the table, and the run that all its rows vary."""

    name: str
    config: RunConfig


@dataclass(frozen=True)
class Entry:
    """One measurement. ``command``: of the kind ``other``; ``form``: of the graph that stock PyG is given; else empty."""

    kind: Literal["train", "stock", "other", "limits"]
    name: str
    config: RunConfig
    command: str = ""
    form: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """What a kept result must have been measured with."""
        cores = len(os.sched_getaffinity(0))
        if self.kind == "limits":
            return {"cores": cores, "precision": self.config.precision}
        settings: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self.config)))
        for key in _CHANGES_NOTHING:
            settings.pop(key, None)
        if self.kind != "train":  # one process, whatever the table's modes and worlds are
            for key in ("world", "threads", "mode", "kernel", "partitioner", "comm", "engine", "checkpoint"):
                settings.pop(key, None)
        return settings | {"cores": cores, "command": self.command}


def row_name(mode: str, world: int, precision: str | None = None) -> str:
    """``precision``: of a further one."""
    return f"{mode}, world {world}{'' if precision is None else f', {precision}'}"


def entries_of(case: Case, table: BenchTableConfig) -> list[tuple[Entry, int]]:
    """What is measured, in order, each with its round: the machine's limits, all rounds, a profiled run, the limits again."""
    entries = [(Entry("limits", BEFORE, case.config), 0)] if table.limits else []
    entries += [(entry, number) for number in range(table.rounds) for entry in _of_a_round(case, table)]
    return entries + [(entry, 0) for entry in _after_rounds(case, table)]


def _of_a_round(case: Case, table: BenchTableConfig) -> list[Entry]:
    """One round: each entry with the row before it, so that a drift of the machine meets neighbours alike. Entries without the
    static aggregate stand behind the run that shows whether there is one."""
    runs = []
    for world in table.worlds:
        for mode in table.modes:
            runs.append(Entry("train", row_name(mode, world), _varied(case.config, mode, world)))
            if mode in table.not_static and case.config.engine.cache_static == "auto":
                engine = dataclasses.replace(case.config.engine, cache_static=False)
                anew = dataclasses.replace(_varied(case.config, mode, world), engine=engine)
                runs.append(Entry("train", row_name(mode, world) + NOT_STATIC, anew))
            for precision in _further(case, table):
                runs.append(Entry("train", row_name(mode, world, precision), _varied(case.config, mode, world, precision)))
            if mode in table.one_process and world > 1:
                for further in (None, *_further(case, table)):
                    parts = dataclasses.replace(_varied(case.config, mode, world, further), processes=1, threads=None)
                    runs.append(Entry("train", row_name(mode, world, further) + ONE_PROCESS, parts))
    others = [Entry("other", name, case.config, command) for name, command in table.others.items()]
    pyg = []
    if table.stock and not reasons_without_pyg(case):
        pyg = [Entry("stock", name, case.config, form=form) for form, name in PYG.items()]
    if not table.stock or reasons_without_stock(case):
        return [*pyg, *runs, *others]
    first = next((number for number, run in enumerate(runs) if number and not run.name.endswith(NOT_STATIC)), len(runs))
    plain, huge = (Entry("stock", name, case.config) for name in (STOCK, HUGE))
    halves = [Entry("stock", IN_BF16, dataclasses.replace(case.config, precision="bf16"))] * ("bf16" in _further(case, table))
    return [plain, *pyg, *runs[:first], huge, *runs[first:], *halves, *others]


def _after_rounds(case: Case, table: BenchTableConfig) -> list[Entry]:
    if not table.limits:
        return []
    from sargnn.report.bench.epoch import counted_modes

    counted, world = counted_modes(), table.worlds[0]
    mode = next((mode for mode in table.modes if mode in counted), None)
    profiled = []
    if mode is None:
        return [Entry("limits", AFTER, case.config)]
    for precision in (None, *_further(case, table)):
        config = dataclasses.replace(_varied(case.config, mode, world, precision), profile=True)
        profiled.append(Entry("train", f"{row_name(mode, world, precision)}{PROFILED}", config))
        if precision is not None:
            profiled.append(Entry("limits", f"{LIMITS}, {precision}", dataclasses.replace(case.config, precision=precision)))
    return [*profiled, Entry("limits", AFTER, case.config)]


def _further(case: Case, table: BenchTableConfig) -> list[Precision]:
    return [precision for precision in table.precisions if precision != case.config.precision]


def _varied(config: RunConfig, mode: str, world: int, precision: Precision | None = None) -> RunConfig:
    if world % config.num_servers:
        config = dataclasses.replace(config, servers=None, preload=PreloadConfig())
    precision = precision or config.precision
    return dataclasses.replace(config, mode=ModeConfig(mode), world=world, processes=world, precision=precision)


def reasons_without_stock(case: Case) -> list[str]:
    """Why stock DGL is not measured; none: it is."""
    if case.config.device != "cpu":
        return ["DGL from PyPI runs on a CPU only"]
    if not is_installed():
        return [NOT_INSTALLED]
    config, models = case.config, DGL_MODELS
    if config.draws_flows:
        if config.model.name not in SAMPLED_MODELS:
            return [f"stock DGL's sampler is not measured with model={config.model.name}"]
        if config.sample.every != "step" and config.samples:
            return ["stock DGL's sampler draws anew in every step: sample.every=step"]
        models = SAMPLED_MODELS
    if config.model.name not in models:
        return [f"stock DGL is not measured with model={config.model.name}"]
    return _other_settings("stock DGL", case, models)


def reasons_without_pyg(case: Case) -> list[str]:
    """Why stock PyG is not measured; none: it is."""
    if find_spec("torch_geometric") is None:
        return ["stock PyG is not measured: torch_geometric is not installed"]
    if case.config.draws_flows:
        return ["stock PyG's loaders are not measured"]
    if case.config.model.name not in PYG_MODELS:
        return [f"stock PyG is not measured with model={case.config.model.name}"]
    return _other_settings("stock PyG", case, PYG_MODELS)


def _other_settings(peer: str, case: Case, models: Mapping[str, str]) -> list[str]:
    """Settings with which a peer's network would be another model than the run's."""
    config, network = case.config, resolve("stock model", models, case.config.model.name)
    given, of_links = dataclasses.asdict(config.model), dataclasses.asdict(config.links)
    wanted = {f"model.{key}": (given.get(key), value) for key, value in network.builds.items()}
    plain = {key: value for key, value in dataclasses.asdict(LinksConfig()).items() if key not in FREE_OF_LINKS}
    wanted |= {f"links.{key}": (of_links[key], value) for key, value in plain.items()}
    wanted |= {
        "task": (config.task, network.tasks),
        "labels": (config.labels.name, "none"),
        "mfg": (config.mfg, False),
        "dataset.loop_features": (
            config.dataset.loop_features,
            ("zeros", "mean") if not config.model.reads_edge_features else "zeros",
        ),
        "precision": (config.precision, "fp32"),
        "optim": (config.optim.name, "adam"),
        "optim.loss": (config.optim.loss, None),
        "batches.count": (config.batches.count, 1),
    }
    allowed = {key: value if isinstance(value, tuple) else (value,) for key, (_, value) in wanted.items()}
    return [
        f"{peer} is measured with {key}={' or '.join(map(str, allowed[key]))}"
        for key, (chosen, _) in wanted.items()
        if chosen not in allowed[key]
    ]
