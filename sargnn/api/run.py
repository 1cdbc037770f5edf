"""A run from Python: what it reported, its curves, its predictions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sargnn.api.process import ask
from sargnn.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure

    from sargnn.config.run import RunConfig


class Run:
    """A run that has ended, or is under way elsewhere; figures are read from its folder when they are asked for.

    Args:
        folder: the run folder, or the run's name in ``runs/``. quiet: show nothing while it predicts.

    Attributes:
        folder: its folder, absolute.

    Raises:
        ConfigError: there is no such run.
    """

    def __init__(self, folder: str | os.PathLike[str], *, quiet: bool = False) -> None:
        from sargnn.tracking.find_runs import find_run

        if not isinstance(folder, str | os.PathLike):
            raise ConfigError("A run is named by its folder.", given=repr(folder)[:60], allowed="a text or a path")
        self._quiet = quiet
        self.folder = find_run(os.fspath(folder)).resolve()

    @property
    def config(self) -> RunConfig:
        """The settings that it was started with."""
        from sargnn.config.run import load
        from sargnn.tracking.files import CONFIG

        return load(self.folder / CONFIG)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` holds; empty while the run is under way."""
        from sargnn.tracking.summary import read_summary

        summary = read_summary(self.folder)
        return summary.as_dict() if summary is not None else {}

    @property
    def losses(self) -> list[float]:
        """The training loss of each epoch."""
        return [row["loss"] for row in self.rows()]

    def rows(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``, an epoch each, with every worker's figures in ``ranks``."""
        from sargnn.tracking.files import MetricsTail

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
            settings: what ``sargnn predict`` takes: ``world``, ``mode``, ``smooth``, ``checkpoint="best"``, ``out=FOLDER``.

        Raises:
            SargnnError: anything that can be mended, such as a run without a checkpoint.
        """
        return self._predicted("predictions.npy", settings)

    def logits(self, **settings: Any) -> np.ndarray:
        """What the model gives, float [N, C]; arguments as of ``predictions``."""
        return self._predicted("logits.npy", settings)

    def embeddings(self, **settings: Any) -> np.ndarray:
        """What the model's last layer reads, float [N, F]; arguments as of ``predictions``."""
        return self._predicted("embeddings.npy", settings)

    def _predicted(self, file: str, settings: dict[str, Any]) -> np.ndarray:
        import numpy as np

        from sargnn.run.predict import FOLDER

        given = dict(settings)
        quiet = bool(given.pop("quiet", self._quiet))
        which = str(given.pop("checkpoint", "newest"))
        folder = Path(given.pop("out", self.folder / FOLDER)).expanduser().resolve()
        if given or which != "newest" or not self._is_current(folder, file):
            self._predict(folder, which, file == "embeddings.npy", given, quiet)
        array: np.ndarray = np.load(folder / file)
        return array

    def _is_current(self, folder: Path, file: str) -> bool:
        """Whether the folder holds what the newest checkpoint says with the run's own settings."""
        from sargnn.errors import SargnnError
        from sargnn.tracking.files import CONFIG, read_json
        from sargnn.training import checkpoint

        try:
            manifest = read_json(folder / "predictions.json")
            newest, _ = checkpoint.newest(self.folder)
            if newest is None:
                return False
            same = manifest["checkpoint"] == checkpoint.open_checkpoint(newest, verify=False).content_hash
            plain = (folder / CONFIG).is_file() and manifest.get("which", "newest") == "newest" and manifest.get("plain", False)
            return bool(same and plain and file in manifest["files"] and (folder / file).is_file())
        except (SargnnError, KeyError, OSError):
            return False

    def _predict(self, folder: Path, which: str, embeddings: bool, settings: dict[str, Any], quiet: bool) -> None:
        from sargnn.api.overrides import as_words
        from sargnn.cli.resume import read_resumed
        from sargnn.config.decides import as_mapping
        from sargnn.tracking.files import read_json, write_json

        if which not in ("newest", "best"):
            raise ConfigError("There is no such checkpoint.", given=which, allowed=["newest", "best"])
        resumed = read_resumed([f"resume={self.folder}", *as_words((), settings)])
        assert resumed is not None
        request = {
            "verb": "predict",
            "config": as_mapping(resumed[0]),
            "run_dir": str(self.folder),
            "folder": str(folder),
            "which": which,
            "embeddings": embeddings,
        }
        ask(request, quiet=quiet)
        manifest = folder / "predictions.json"
        write_json(manifest, read_json(manifest) | {"which": which, "plain": not settings})

    def plot(self) -> Figure:
        """A figure of the loss and of the metric on the splits, over the epochs."""
        from sargnn.report.comparison.draw import plot_run

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
