"""Hydra's own settings: this project composes with Hydra and runs by itself, so most of them would do nothing."""

from __future__ import annotations

import re
import shlex

from sargnn.errors import ConfigError

_TAKEN = re.compile(r"hydra\.(mode|sweeper\.params)(\.|$)")
"""What makes an experiment a sweep."""
_INSTEAD = (
    (r"hydra\.run\.dir", "run_dir={value}"),
    (r"hydra\.sweep\.", "the runs of a sweep go to sweeps/KEY/, a folder for each"),
    (r"hydra\.job\.name", "run_name={value}"),
    (r"hydra\.job\.chdir", "a run's files go to its folder: run_dir=FOLDER"),
    (r"hydra[/.]launcher", "sargnn slurm -m writes a job for each point"),
    (r"hydra[/.]sweeper", "-m key=a,b,c, or an experiment that sets hydra.sweeper.params"),
    (r"hydra\.searchpath", "--config-dir {value}, or a folder conf/ here: both add options"),
    (r"hydra[/.](job_logging|hydra_logging|verbose)", "logs are in RUN/logs/; SARGNN_FULL_ERROR=1 shows tracebacks"),
    (r"hydra\.(output_subdir|runtime)", "a run's configuration is in its folder, config.yaml"),
    (r"hydra[/.](help|hydra_help)", "sargnn train --help"),
    (r"", "run_dir=FOLDER, run_name=NAME, -m for sweeps, sargnn slurm -m for their jobs"),
)


def is_of_hydra(key: str) -> bool:
    """Whether a setting or a group is Hydra's own."""
    return re.match(r"[+~]*hydra([./@]|$)", key) is not None


def refuse_hydra(key: str, value: str, given: str) -> None:
    """Raises ``ConfigError`` for a setting of Hydra that would do nothing, with what there is instead.

    Args:
        given: how it was given, or where.
    """
    key = key.lstrip("+~")
    if not is_of_hydra(key) or _TAKEN.match(key):
        return
    instead = next(text for pattern, text in _INSTEAD if re.match(pattern, key))
    plain = value.strip("[]'\"").removeprefix("file://") or "FOLDER"
    raise ConfigError("Hydra's own settings do nothing here.", given=given, hint=instead.format(value=shlex.quote(plain)))
