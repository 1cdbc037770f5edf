"""Runs from Python: ``sargnn.train``, ``load`` and ``compare``; and what a run reported, its curves, its predictions."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sargnn.api.process import ask, callback_of
from sargnn.cli.command_line import words_of
from sargnn.config.fields import as_mapping
from sargnn.config.run import RunConfig, parse
from sargnn.config.run import load as load_config
from sargnn.errors import ConfigError, SargnnError
from sargnn.tracking.files import CONFIG, MetricsTail, read_json, write_json
from sargnn.tracking.find_runs import find_run, find_runs
from sargnn.tracking.summary import read_summary

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure

GRAPH = "the graph"
_ALLOWED = "a class that extends torch.nn.Module, or a function that returns one, in a file of its own"


def as_words(overrides: tuple[str, ...], settings: Mapping[str, Any]) -> list[str]:
    """The words that ``sargnn train`` would get. ``model`` may also be a class of modules, or a function that returns one.

    Raises ``ConfigError`` for an override that is no text, or a value that no setting can have.
    """
    for override in overrides:
        if not isinstance(override, str):
            hint = "graph=... takes a graph, world=... and the like are keywords"
            raise ConfigError("An override is a text.", given=f"{type(override).__name__}", allowed='"key=value"', hint=hint)
    module: list[str] = []
    if callable(settings.get("model")):
        settings = dict(settings)
        module = ["model=custom", *words_of("model.target", _place_of_module(settings.pop("model")))]
    return [*overrides, *module, *(word for key, value in settings.items() for word in words_of(key, value))]


def _place_of_module(model: Any) -> str:
    """``FILE.py:NAME`` of a class or a function that workers can find by it, else by its module's name; or ``ConfigError``."""
    if not inspect.isroutine(model) and not isinstance(model, type):
        kind = type(model).__name__
        raise ConfigError(
            "'model' is a module that is made already; the run makes its own.",
            given=f"a {kind}",
            allowed=_ALLOWED,
            hint=f'sargnn.train("model.args.NAME=VALUE", model={kind}, ...)',
        )
    name = getattr(model, "__qualname__", "")
    try:
        file = inspect.getsourcefile(model)
    except (TypeError, OSError):  # the latter of a class of a session that has no file
        file = None
    if file is not None:
        file = os.path.abspath(file) if os.path.isfile(file) else None
    if model.__module__ == "__main__":
        raise ConfigError(
            "The model is defined where it is trained, and workers would run all of that again.",
            given=f"{name} in {os.path.basename(file) if file else 'an interactive session'}",
            allowed=_ALLOWED,
            hint="put it into a file and import it from there; in a notebook a cell that begins with %%writefile makes one",
        )
    if not name.isidentifier():
        raise ConfigError("The model cannot be found by a name.", given=name, allowed=_ALLOWED)
    # A file with relative imports works as a part of its package only.
    if file is None or re.search(r"^\s*from\s+\.", Path(file).read_text(errors="replace"), flags=re.M):
        return f"{model.__module__}:{name}"
    return f"{file}:{name}"


def store_of_graph(graph: Any, words: Sequence[str], *, predicted_type: str | None = None) -> list[str]:
    """Make the store of a graph that is an object in this process, if it is not there, and name it in the words of a command.

    Args:
        words: overrides; those of ``dataset`` say how the graph is read.
        predicted_type: of a graph that is predicted on, the type whose nodes it is.

    Raises:
        ConfigError: a dataset is named, too.
        DataError: what is wrong with the graph.
    """
    from sargnn.cli.compose import compose_verb, says_how_labels_are_read
    from sargnn.config.fields import build
    from sargnn.config.verbs import PrepareConfig
    from sargnn.sources.own.reader import object_reader
    from sargnn.sources.prepare import make_store
    from sargnn.sources.settings import PythonConfig

    if any(word.startswith("resume=") for word in words):
        raise ConfigError("A run that is gone on with has its graph.", given="graph= and resume=", hint="leave graph= out")
    named = [word for word in words if word.startswith(("dataset=", "dataset.root=", "dataset.target="))]
    if named:
        raise ConfigError("A graph is given, and a dataset is named, too.", given=named[0], hint="leave one out")
    own = [
        word
        for word in words
        if word.startswith("dataset.") or (word.startswith("task=") and says_how_labels_are_read(word.partition("=")[2]))
    ]
    of_stores = [word for word in words if word.startswith(("store_dir=", "prepare."))]
    config = build(PrepareConfig, compose_verb("prepare", [*own, *of_stores, "dataset=python", "dataset.target=null"]), "")
    assert isinstance(config.dataset, PythonConfig)
    settings = dataclasses.replace(config.dataset, predicted_type=predicted_type)
    reader = object_reader(graph, settings, "graph", GRAPH, None)
    path = make_store(reader, "graph", Path(config.store_dir) / "datasets", config.prepare.bytes)
    later = ("add_self_loops=", "loop_features=", "edge_weights=", "link_")  # of the store: links are drawn from it
    kept = [word for word in own if word.startswith(tuple(f"dataset.{setting}" for setting in later))]
    stored = as_words((), {"dataset": "stored", "dataset.root": path.resolve()})
    return [*(word for word in words if word not in own), *kept, *stored]


NOT_GIVEN = object()


def train(*overrides: str, graph: Any = NOT_GIVEN, quiet: bool = False, callbacks: Sequence[Any] = (), **settings: Any) -> Run:
    """Train a model on local workers and return the run.

        run = sargnn.train("model=gat", world=4, epochs=100, graph=g)

    Args:
        overrides: what ``sargnn train`` takes, such as "model=gat", "optim.lr=0.01" or "experiment=laptop_tour".
        graph: a DGLGraph, a PyG Data or HeteroData, a NetworkX graph, a mapping of arrays, or a pair of a graph and a mapping
            (``docs/howto/own-function.md``); without it the dataset is the one that is configured.
        quiet: show no progress.
        callbacks: ``sargnn.Callback`` objects, or functions of an epoch's row, called in this process while the run goes on.
            What one raises ends the run, with a checkpoint, and is raised here.
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
    for each in callbacks:
        callback_of(each)  # before anything is started
    return Run(Path(ask(request, quiet=quiet, callbacks=callbacks)["run_dir"]), quiet=quiet)


class Run:
    """A run that has ended, or is under way elsewhere; figures are read from its folder when they are asked for.

    Args:
        folder: the run folder, or the run's name in ``runs/``.
        quiet: show nothing while it predicts.

    Attributes:
        folder: its folder, absolute.

    Raises:
        ConfigError: there is no such run.
    """

    def __init__(self, folder: str | os.PathLike[str], *, quiet: bool = False) -> None:
        if not isinstance(folder, str | os.PathLike):
            raise ConfigError("A run is named by its folder.", given=repr(folder)[:60], allowed="a text or a path")
        self._quiet = quiet
        self.folder = find_run(os.fspath(folder)).resolve()

    @property
    def config(self) -> RunConfig:
        """The settings that it was started with."""
        return load_config(self.folder / CONFIG)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` holds; empty while the run is under way."""
        summary = read_summary(self.folder)
        return summary.as_dict() if summary is not None else {}

    @property
    def losses(self) -> list[float]:
        """The training loss of each epoch."""
        return [row["loss"] for row in self.rows()]

    def rows(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``, an epoch each, with every worker's figures in ``ranks``."""
        return list(MetricsTail(self.folder).new_rows())

    def to_pandas(self) -> pd.DataFrame:
        """A row per epoch: loss, learning rate, times in seconds, bytes, and the metrics where it was evaluated."""
        import pandas as pd

        rows = [{key: value for key, value in row.items() if key != "ranks"} for row in self.rows()]
        return pd.DataFrame(rows).set_index("epoch") if rows else pd.DataFrame()

    def predictions(self, **settings: Any) -> np.ndarray:
        """What the model says of every node, in the order of their numbers: int64 [N], the classes (other tasks:
        ``training.predict``); with ``smooth="cs"`` after Correct & Smooth.

        Args:
            settings: what ``sargnn predict`` takes: ``world``, ``mode``, ``smooth``, ``checkpoint="best"``, ``out=FOLDER``; and
                another graph, by ``dataset`` or as ``graph=g``, with ``new_rows="mean"`` where the model learns rows of nodes.

        Raises:
            SargnnError: anything that can be mended, such as a run without a checkpoint.
        """
        return self._predicted("predictions.npy", settings)

    def logits(self, **settings: Any) -> np.ndarray:
        """What the model gives, float [N, C]; arguments as of ``predictions``."""
        return self._predicted("logits.npy", settings)

    def embeddings(self, **settings: Any) -> np.ndarray:
        """What the model's last layer reads, or of links and edges gives, float [N, F]; arguments as of ``predictions``."""
        return self._predicted("embeddings.npy", settings)

    def table(self, *, embeddings: bool = False, **settings: Any) -> pd.DataFrame:
        """What the model says of every node, or edge, with the ids of the tables that the graph was read from; of links the
        embeddings of nodes.

        Args:
            embeddings: a column of them, too.
            settings: as of ``predictions``.
        """
        import pandas as pd

        name = "embeddings" if self.config.predicts_links else "predictions"
        return pd.read_parquet(
            self._predict(f"{name}.parquet", settings, form="parquet", **({"embeddings": True} if embeddings else {}))
        )

    def pair_scores(self, pairs: np.ndarray, *, relation: str | None = None, **settings: Any) -> np.ndarray:
        """Of a run of ``task=links``: scores of pairs of nodes, float [P]; of ``task=edges`` what the decoder gives, [P, C].

        Args:
            pairs: int64 [2, P], heads and tails, numbered within their types.
            relation: of a graph with several, whose pairs they are.
            settings: as of ``predictions``.
        """
        import numpy as np

        with tempfile.TemporaryDirectory(prefix="sargnn-") as scratch:
            file = Path(scratch) / "pairs.npy"
            np.save(file, np.asarray(pairs))
            return self._predicted("pair_scores.npy", settings, pairs=str(file), relation=relation)

    def partners(self, count: int, *, relation: str | None = None, **settings: Any) -> np.ndarray:
        """Of a run of ``task=links``: each node's best partners, best first, without those that it is known to be linked to.

        Args:
            count: K.
            relation: of a graph with several, whose tails they are.
            settings: as of ``predictions``.

        Returns:
            int64 [nodes, K], -1 where there are no more.
        """
        return self._predicted("partners.npy", settings, top=count, relation=relation)

    def _predicted(self, file: str, settings: dict[str, Any], **of_links: Any) -> np.ndarray:
        import numpy as np

        array: np.ndarray = np.load(self._predict(file, settings, **of_links))
        return array

    def _predict(self, file: str, settings: dict[str, Any], *, form: str = "npy", **asked: Any) -> Path:
        """The file, which is made where the folder does not hold it yet."""
        from sargnn.run.predict import FOLDER

        given = dict(settings)
        quiet = bool(given.pop("quiet", self._quiet))
        which = str(given.pop("checkpoint", "newest"))
        folder = Path(given.pop("out", self.folder / FOLDER)).expanduser().resolve()
        if given or asked or which != "newest" or not self._is_current(folder, file):
            from sargnn.cli.resume import names_dataset, read_resumed

            if which not in ("newest", "best"):
                raise ConfigError("There is no such checkpoint.", given=which, allowed=["newest", "best"])
            new_rows, graph = str(given.pop("new_rows", "refuse")), given.pop("graph", NOT_GIVEN)
            words = as_words((), given)
            if graph is not NOT_GIVEN:
                from sargnn.run.other_graph import predicted_type

                words = store_of_graph(graph, words, predicted_type=predicted_type(self.config, self.folder))
            resumed = read_resumed([f"resume={self.folder}", *words], trains=False)
            assert resumed is not None
            request = {
                "verb": "predict",
                "config": as_mapping(resumed[0]),
                "run_dir": str(self.folder),
                "folder": str(folder),
                "which": which,
                "how": {"form": form, "other_graph": names_dataset(words), "new_rows": new_rows},
                "asked": {"embeddings": file == "embeddings.npy"} | asked,
            }
            ask(request, quiet=quiet)
            manifest = folder / "predictions.json"
            write_json(manifest, read_json(manifest) | {"which": which, "plain": not given and not asked})
        return folder / file

    def _is_current(self, folder: Path, file: str) -> bool:
        """Whether the folder holds what the newest checkpoint says with the run's own settings."""
        from sargnn.training import checkpoint

        try:
            manifest = read_json(folder / "predictions.json")
            newest, _ = checkpoint.newest(self.folder)
            if newest is None:
                return False
            same = manifest["checkpoint"] == checkpoint.open_checkpoint(newest, verify=False).content_hash
            plain = (folder / CONFIG).is_file() and manifest.get("which", "newest") == "newest" and manifest.get("plain", False)
            return bool(
                same and plain and file in (*manifest["files"], *manifest.get("tables", ())) and (folder / file).is_file()
            )
        except (SargnnError, KeyError, OSError):
            return False

    def plot(self) -> Figure:
        """A figure of the loss and of the metric on the splits, over the epochs."""
        from sargnn.report.draw import plot_run

        return plot_run(self.rows(), self.name)

    def __repr__(self) -> str:
        summary = self.summary
        status = summary.get("status", "under way")
        losses = self.losses
        figures = [f"{len(losses)} epochs", *([f"loss {losses[-1]:.4f}"] if losses else [])]
        if summary.get("test_metric") is not None:
            figures.append(f"test {summary['metric']} {summary['test_metric']:.4f}")
        return f"<Run '{self.name}': {status}, {', '.join(figures)}, {self.folder}>"


def load(folder: str | os.PathLike[str]) -> Run:
    """The run in a folder, or of a name in ``runs/``. Raises ``ConfigError`` where there is none."""
    return Run(folder)


def compare(runs: Iterable[Run | str | os.PathLike[str]]) -> pd.DataFrame:
    """A row per run: what ran, its last loss, its metrics, its time in seconds and its largest worker's peaks in bytes.

    The rows are named as ``sargnn compare`` names runs. A run that is under way has a row, too, with what there is of it.

    Args:
        runs: runs, or what names them: a name in ``runs/``, a run folder, a sweep, a pattern.

    Raises:
        ConfigError: no run is given, a word names none, or a configuration is damaged.
        SargnnError: another file of a run is damaged.
    """
    import pandas as pd

    from sargnn.report.groups import last_loss
    from sargnn.report.runs import name_runs, read_run

    if isinstance(runs, str | os.PathLike | Run):
        runs = [runs]
    folders = [
        folder for given in runs for folder in ([given.folder] if isinstance(given, Run) else find_runs(os.fspath(given)))
    ]
    if not folders:
        raise ConfigError("There is no run to compare.", hint='sargnn.compare([run, "runs/NAME"])')
    rows = []
    for run in name_runs([read_run(folder) for folder in folders]):
        summary = run.summary.as_dict() if run.summary is not None else {}
        named = ("dataset", "model", "mode", "kernel", "world", "status")
        scores = ("metric", "val_metric", "test_metric", "test_metric_at_best_val")
        figures = (*scores, "epoch_time_s", "comm_wait_time_s", "comm_bytes_per_epoch")
        rows.append(
            {"run": run.name}
            | {key: summary.get(key) for key in named}
            | {"seed": run.seed, "epochs": len(run.epochs)}
            | {"loss": last_loss(run)}
            | {key: summary.get(key) for key in figures}
            | {key: max(summary.get(key) or [0]) or None for key in ("peak_train_bytes", "peak_rss_bytes")}
            | {"folder": str(run.folder.resolve())}
        )
    return pd.DataFrame(rows).set_index("run")
