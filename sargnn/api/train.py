"""``sargnn.train``: a run from Python."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sargnn.api.overrides import as_words
from sargnn.api.process import ask
from sargnn.api.run import Run
from sargnn.api.stores import store_of_graph
from sargnn.config.decides import as_mapping
from sargnn.config.run import parse
from sargnn.errors import ConfigError

NOT_GIVEN = object()


def train(*overrides: str, graph: Any = NOT_GIVEN, quiet: bool = False, **settings: Any) -> Run:
    """Train a model on local workers and return the run.

        run = sargnn.train("model=gat", world=4, epochs=100, graph=g)

    Args:
        overrides: what ``sargnn train`` takes, such as "model=gat", "optim.lr=0.01" or "experiment=laptop_tour".
        graph: a DGLGraph, a PyG Data or HeteroData, a NetworkX graph, a mapping of arrays, or a pair of a graph and a mapping
            (docs/OWN_DATA.md); without it the dataset is the one that is configured.
        quiet: show no progress.
        settings: the same as overrides, by keyword; groups as mappings: ``world=4``, ``optim={"lr": 0.01}``. ``resume=RUN``
            goes on with a run, which may be a ``Run``. ``model=Gin``, a class of modules in a file of its own, is that
            file's ``model=custom``; its arguments are ``"model.args.hidden=32"``.

    Raises:
        SargnnError: anything that can be mended; the text says how.
        KeyboardInterrupt: the run was interrupted; it has written a checkpoint where it could.
    """
    from sargnn.cli.compose import compose_verb, sweep_points
    from sargnn.cli.resume import read_resumed

    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        raise ConfigError(
            "sargnn.train starts workers itself, and this process is one of several.",
            given=f"RANK={os.environ['RANK']}",
            hint="call it in a process of its own; or sargnn.shard(graph) gives this rank its part",
        )
    for key in ("resume", "init_from"):
        if isinstance(settings.get(key), Run):
            settings[key] = settings[key].folder
    words = as_words(overrides, settings)
    if graph is None:
        raise ConfigError("graph= is None.", hint="does the function that made it end with 'return graph'?")
    if graph is not NOT_GIVEN:
        words = store_of_graph(graph, words)
    going_on = read_resumed(words)
    if going_on is None:
        if sweep_points("train", words, multirun=False) is not None:
            raise ConfigError("This experiment is a sweep, and sargnn.train is one run.", hint="call it in a loop")
        config, resume = parse(compose_verb("train", words)), None
    else:
        config, resume = going_on
    request = {"verb": "train", "config": as_mapping(config), "resume": str(resume.resolve()) if resume else None}
    return Run(Path(ask(request, quiet=quiet)["run_dir"]), quiet=quiet)
