"""A sweep's ``submit.sh``: it hands the script of each point to sbatch, so that one command submits them all."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from sargnn.errors import ConfigError
from sargnn.run.slurm import Job, check_syntax, comment, quoted

SUBMIT = "submit.sh"
_TEXT = """\
#!/bin/bash
{about}
# shellcheck disable=SC2016 # what points are called is text

cd {folder} || exit 1
SCRIPTS={scripts}
refused=0

submit() {{
    local job
    if job=$(sbatch --parsable "$SCRIPTS/$1"); then
        printf 'job %s: %s\\n' "${{job%%;*}}" "$2"
    else
        printf 'sargnn: sbatch did not take it; later: sbatch %q\\n' "$SCRIPTS/$1" >&2
        refused=1
    fi
}}

{calls}
exit "$refused"
"""


def submit_text(job: Job, scripts: Sequence[Path], labels: Sequence[str]) -> str:
    """The script.

    Args:
        job: of any point; where the command was given, and its words. scripts: of the points, all in one folder.
        labels: what the points are called.

    Raises:
        ConfigError: a folder that cannot stand in a script.
    """
    sweep = job.run_dirs[0].parent
    about = [
        f"Submits the points of the sweep {sweep.name} that were not finished, each as a job of its own: {len(scripts)}.",
        "",
        f"Written by: sargnn {shlex.join(job.words)}",
        "A line taken out leaves its point out. A job whose run is over by then, or under way, ends at once.",
        f"How far they are: sargnn slurm --status {shlex.quote(str(sweep))}",
    ]
    calls = [f"submit {quoted(path.name)} {quoted(_printable(label))}" for path, label in zip(scripts, labels, strict=True)]
    text = _TEXT.format(
        about="\n".join(map(comment, about)),
        folder=quoted(job.folder),
        scripts=quoted(scripts[0].parent),
        calls="\n".join(calls),
    )
    check_syntax(text)
    return text


def write_submit(text: str, folder: Path) -> Path:
    """Write it; its path. Raises ``ConfigError`` where the folder cannot be written."""
    path = folder / SUBMIT
    try:
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    except OSError as error:
        raise ConfigError(f"The script cannot be written: {error.strerror}.", given=str(path)) from error
    return path


def _printable(text: str) -> str:
    return comment(text).removeprefix("# ")
