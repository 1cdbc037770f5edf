"""Executes the notebooks of docs/tutorials, each in an empty folder, and keeps their outputs in them.

    python scripts/notebooks.py                   # all of them
    python scripts/notebooks.py own-model         # one
    python scripts/notebooks.py --check           # nothing is written; the exit code is 1 if a cell fails

What a reader's machine would have otherwise is taken out of outputs: folders, the machine's name, colours of a terminal,
and the time at which a cell ran.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "tutorials"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}
"""Without the version of the interpreter that ran."""
PER_CELL_S = 300
LARGEST_BYTES = 150_000
SHELL_LINES = """
import os
import subprocess
import warnings

warnings.filterwarnings("ignore", message="IProgress not found")  # a bar of tqdm's, which nothing here draws
for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "CLICOLOR"):  # which the kernel has set
    os.environ.pop(name, None)
os.environ["TERM"] = "dumb"

def system(command):
    shell = get_ipython()
    text = shell.var_expand(command, depth=1)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(text, shell=True, **pipes) as process:
        for line in process.stdout:
            print(line.decode(errors="replace"), end="", flush=True)
    shell.user_ns["_exit_code"] = process.returncode
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}: {text}")

get_ipython().system = system
del name, system
"""
"""Runs when a kernel starts: ``!command`` writes lines instead of bars that are drawn over each other, and must succeed."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")
_SHOWN_AS_FOLDER, _SHOWN_AS_ROOT = "~/tutorial", "~/sargnn"


def notebook_paths(names: list[str] | None = None) -> list[Path]:
    """The notebooks of these names, with or without ending; all of them where none is given.

    Raises:
        SystemExit: there is no notebook of a name.
    """
    paths = [FOLDER / f"{Path(name).stem}.ipynb" for name in names] if names else sorted(FOLDER.glob("*.ipynb"))
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        allowed = ", ".join(path.stem for path in sorted(FOLDER.glob("*.ipynb")))
        raise SystemExit(f"There is no notebook {', '.join(missing)}. There are: {allowed}")
    return paths


def environment(folder: Path) -> dict[str, str]:
    """What the kernel and the commands in its cells get: this interpreter's programs, this checkout, a plain terminal."""
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "IPYTHONDIR": str(folder / "ipython"),
        "COLUMNS": "80",
        "NO_COLOR": "1",
    }


def execute(path: Path) -> NotebookNode:
    """The notebook after all its cells have run in an empty folder, with clean outputs.

    Raises:
        CellExecutionError: a cell failed; the text has the cell and its traceback.
    """
    import nbformat  # not above: the tests of stored outputs need none of these
    from nbclient import NotebookClient
    from traitlets.config import Config

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="tutorial-") as place:
        folder, settings = Path(place).resolve() / "work", Path(place).resolve()
        folder.mkdir()
        startup = settings / "ipython" / "profile_default" / "startup"
        startup.mkdir(parents=True)
        (startup / "00-shell-lines.py").write_text(SHELL_LINES)
        client = NotebookClient(
            notebook,
            config=Config({"KernelManager": {"transport": "ipc", "ip": str(settings / "kernel")}}),  # no port on the machine
            timeout=PER_CELL_S,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": str(folder)}},
        )
        client.execute(env=environment(settings))
        return clean(notebook, folder)


def clean(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """The same notebook, changed: its outputs without what is this machine's.

    Args:
        folder: where it ran; shown as ``~/tutorial``.
    """
    import nbformat

    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({key: cell.metadata[key] for key in ("tags",) if key in cell.metadata})
        if cell.cell_type != "code":
            continue
        outputs: list[NotebookNode] = []
        for output in cell.outputs:
            if output.output_type == "stream":
                before = outputs[-1] if outputs else None
                if before is not None and before.output_type == "stream" and before.name == output.name:
                    before.text += output.text
                    continue
            outputs.append(output)
        for output in outputs:
            if output.output_type == "stream":
                output.text = clean_text(output.text, folder)
            for kind, content in output.get("data", {}).items():
                if kind.startswith("text/") and isinstance(content, str):
                    output.data[kind] = clean_text(content, folder)
        cell.outputs = outputs
    return notebook


def clean_text(text: str, folder: Path) -> str:
    """Text as a terminal leaves it, without colours, with folders of a reader."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n")
    lines = (line.rsplit("\r", 1)[-1].rstrip() for line in text.split("\n"))  # what was written over is gone
    text = "\n".join(lines)
    for real, shown in ((folder, _SHOWN_AS_FOLDER), (ROOT, _SHOWN_AS_ROOT), (Path.home(), "~")):
        text = re.sub(rf"{re.escape(str(real))}(?![\w.-])", shown, text)
    return text.replace(socket.gethostname(), "node-1")


def main(words: list[str]) -> int:
    """The exit code: 1 if a cell failed or a notebook grew too large."""
    import nbformat
    from nbclient.exceptions import CellExecutionError

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="notebooks, such as own-model; all of them where none is given")
    parser.add_argument("--check", action="store_true", help="execute without writing")
    given = parser.parse_args(words)
    failed = 0
    for path in notebook_paths(given.names):
        began = time.monotonic()
        try:
            notebook = execute(path)
        except CellExecutionError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            failed = 1
            continue
        text = nbformat.writes(notebook)
        print(f"{path.name}: {time.monotonic() - began:.0f} s, {len(text) / 1000:.0f} kB")
        if len(text) > LARGEST_BYTES:
            print(f"{path.name}: more than {LARGEST_BYTES // 1000} kB", file=sys.stderr)
            failed = 1
        elif not given.check:
            path.write_text(text if text.endswith("\n") else f"{text}\n")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
