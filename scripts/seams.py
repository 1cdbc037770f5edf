"""How large the package is, and how far its ideas reach into each other.

    python scripts/seams.py

Prints a table: lines and files; what a worker of GAT imports; through how many files a run's settings pass from
``run.local.train`` until workers start; how many files outside of its folder know a backend by name, edge weights by name,
the splits and kinds of labels; functions with many parameters; names that say nothing.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from check_names import faults

import sargnn

PACKAGE = Path(sargnn.__file__).parent
RUN = ["model=gat", "mode=sar", "world=1", "epochs=1", "tracking=none", "dataset.num_nodes=300"]
MOST_PARAMETERS = 8
OUTSIDE = {
    "a backend, outside of backends/": (r"backends\.(cpu|torch)\b", ("backends",)),
    "edge weights, outside of graph/ and who reads or uses them": (
        r"\bedge_weight\b",
        ("graph", "sources", "interop", "backends", "report/bench", "engine/reducers", "modules"),
    ),
    "splits or the kind of labels, outside of tasks/, graph/ and sources/": (
        r"\bSPLITS\b|labels\.dtype|\"(multilabel|regression)\"",
        ("tasks", "graph", "sources"),
    ),
}
"""What is looked for, and the folders that may have it."""
WORKER = """
import json, sys
from pathlib import Path
from sargnn.config.run import load
from sargnn.run.env import prepare_process
run = Path(sys.argv[1])
prepare_process(load(run / "config.yaml"))
from sargnn.run.work import work
work(load(run / "config.yaml"), run, 0, 1, lambda heartbeat: None)
print(json.dumps(sorted(name for name in sys.modules if name.split(".")[0] == "sargnn")))
"""
PASSING = """
import json, sys
from sargnn.config.run import RunConfig
import sargnn.run.local as local
files = set()
def note(frame, event, argument):
    if event == "call" and "/sargnn/" in frame.f_code.co_filename and "/config/" not in frame.f_code.co_filename:
        if any(isinstance(value, RunConfig) for value in frame.f_locals.values()):
            files.add(frame.f_code.co_filename)
class Started(BaseException): pass
def stop(*arguments, **settings): raise Started
local.run_and_restart = stop
from sargnn.cli.compose import compose_verb
from sargnn.config.run import parse
config = parse(compose_verb("train", sys.argv[1:]))
sys.setprofile(note)
try:
    local.train(config)
except Started:
    pass
finally:
    sys.setprofile(None)
print(json.dumps(sorted(files)))
"""


def sources() -> list[Path]:
    """The package's files."""
    return sorted(PACKAGE.rglob("*.py"))


def parameters() -> Iterator[int]:
    """How many each function has, without ``self``; compiled loops, whose arguments are plain arrays, are left out."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                decorators = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
                if not re.search("njit|intrinsic|overload", decorators):
                    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                    yield sum(argument.arg not in ("self", "cls", "ctx") for argument in every)


def asked(program: str, *words: str, folder: Path) -> list[str]:
    """What a program in a process of its own prints as its last line."""
    done = subprocess.run([sys.executable, "-c", program, *words], cwd=folder, capture_output=True, text=True, check=True)
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return names


def reach(pattern: str, own: tuple[str, ...]) -> list[str]:
    """The files outside of some folders in which a pattern occurs."""
    places = [path.relative_to(PACKAGE).as_posix() for path in sources() if re.search(pattern, path.read_text())]
    return [place for place in places if not place.startswith(tuple(f"{folder}/" for folder in own))]


def main() -> None:
    """Print the table."""
    counts = list(parameters())
    rows: list[tuple[str, object]] = [
        ("lines of the package", sum(len(path.read_text().splitlines()) for path in sources())),
        ("files", len(sources())),
        (f"functions with more than {MOST_PARAMETERS} parameters", sum(count > MOST_PARAMETERS for count in counts)),
        ("names that say nothing, exceptions from the formatter", sum(len(list(faults(path))) for path in sources())),
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "sargnn.cli.main", "train", *RUN, f"run_dir={folder / 'run'}"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        rows.append(("files that a worker of GAT imports", len(asked(WORKER, str(folder / "run"), folder=folder))))
        rows.append(("files that settings pass through before workers start", len(asked(PASSING, *RUN, folder=folder))))
    rows += [(f"files that know {what}", len(reach(pattern, own))) for what, (pattern, own) in OUTSIDE.items()]
    for what, value in rows:
        print(f"{value:>8}  {what}")
    if "-v" in sys.argv:
        for what, (pattern, own) in OUTSIDE.items():
            print(f"\n{what}", *reach(pattern, own), sep="\n  ")


if __name__ == "__main__":
    main()
