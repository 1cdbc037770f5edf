"""Every command in the documents can be composed, and every link leads somewhere."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from benchmarks.command import HERE, call
from sargnn.cli.compose import compose_verb, sweep_points
from sargnn.cli.conf import find_folders
from sargnn.cli.main import main
from sargnn.cli.verb import Verb
from sargnn.config.run import parse
from sargnn.report.study import FigureSpec, cells_of, read_spec
from tests.cli.every_verb import EVERY_VERB
from tests.parity.covering import only

ROOT = Path(__file__).parents[2]
MADE = ("settings.md", "verbs.md", "summary.md")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts and path.name not in MADE),
]
OF_OWN_FILES = (
    "gin.py",
    "shop",
    "net.py",
    "pyg_flow.py",
    "pyg_gcn.py",
    "own_gin",
    "grid",
    "refetch",
    "scatter",
    "sage_squares",
    "edge_features",
    "scripts/edge_features.py",
    "written",
    "typed",
    "mine",
    "load.py",
    "toxic.py",
    "focal.py",
    "mymetric.py",
    "hgt.py",
    "sgformer.py",
    "rules.py",
    "roads.py",
    "payments.py",
    "by_degree",
    "lines",
    "examples/layers/pyg_deeper.py",
    "examples/layers/sgformer.py",
    "examples/layers/nbfnet.py",
)
"""Tested by their pages."""
BENCHMARK = "python -m benchmarks."
NOT_OF_A_RUN = ("resume", "run", "slurm.", "bench_dir", "+slurm")


def lines_of(page: Path) -> list[str]:
    """The lines of a page's blocks of commands."""
    blocks = re.findall(r"^```bash\n(.*?)^```", page.read_text(), flags=re.S | re.M)
    return [line.strip() for block in blocks for line in block.splitlines()]


def commands() -> dict[str, str]:
    """Command -> the page that has it first; without comments."""
    found: dict[str, str] = {}
    for page in PAGES:
        for line in lines_of(page):
            command = line.removeprefix("python scripts/peak_of.py ").split(" #")[0].split(" | ")[0].strip()
            if not command.startswith(("sargnn ", BENCHMARK)):
                continue
            command = command.removeprefix("sargnn ")
            if not any(f"={name}" in command for name in OF_OWN_FILES):
                found.setdefault(command, page.name)
    return found


def verb_of(words: list[str]) -> Verb:
    verbs = {verb.name: verb for verb in EVERY_VERB}
    if words[0] == "python":
        verb: Verb = importlib.import_module(words[2]).VERB
        return verb
    return verbs[" ".join(words[:2])] if words[0] == "bench" else verbs[words[0]]


COMMANDS = commands()


@pytest.mark.parametrize("command", only(list(COMMANDS)[::5], COMMANDS), ids=lambda text: str(text)[:60])
def test_a_command_can_be_composed(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    words, page = shlex.split(command), COMMANDS[command]
    verb = verb_of(words)
    verb = verb.as_meant(words)
    given = words[3 if words[0] == "python" else 2 if words[0] == "bench" else 1 :]
    flags = [word for word in given if word.startswith("-")]
    assert set(flags) <= {"-m", "--cfg", "--follow", "--status", "--help", *verb.flags}, page
    if verb.config is None or "--status" in flags:
        known = {setting.name for setting in verb.settings}
        assert {word.partition("=")[0] for word in given if "=" in word} <= known, f"{page}: {command}"
        return
    if verb.name in ("bench table", "benchmarks.plan"):
        monkeypatch.setattr("sargnn.report.bench.measure.run", lambda settings, cases: [])
        monkeypatch.setattr("benchmarks.plan.run", lambda settings, points: [])
        monkeypatch.setattr("benchmarks.plan.find_points", lambda settings, make: [make((settings.models or ["sage"])[:1])])
        monkeypatch.setattr("sargnn.cli.sweep.as_interrupts", lambda: None)
        assert (main(words) if verb.program == "sargnn" else call(verb, given)) == 0, f"{page}: {command}"
        return
    overrides = [word for word in given if not word.startswith(("-", *NOT_OF_A_RUN))]
    if verb.takes in ("one run", "one of a few", "one file") or {"--help", "--cfg"} & set(
        flags
    ):  # a run's name, a group alone, what is shown
        overrides = [word for word in overrides if "=" in word]
    if verb.changes_a_run or verb.takes in ("one of a few", "one file"):
        overrides = [word for word in overrides if word.partition("=")[0] not in {setting.name for setting in verb.settings}]
    points = sweep_points(verb.config, overrides, multirun="-m" in flags) if verb.sweeps else None
    if verb.name == "reproduce":
        names = [word for word in given if "=" not in word and not word.startswith("-")]
        specs = [read_spec(ROOT / "conf" / "figure" / f"{name}.yaml", FigureSpec) for name in names]
        points = [one.point for spec in specs for one in cells_of(spec, overrides)]
    folders = find_folders(str(HERE)) if verb.program != "sargnn" else None
    for point in {points[0], points[-1]} if points else {tuple(overrides)}:
        mapping = compose_verb(verb.config, point, folders=folders)
        if verb.config == "train":
            parse(mapping)


OF_A_USER = ("load.py", "make_graph.py", "five_lines.py", "look.py", "mine/", "FOLDER", "elsewhere/", "smoothed", "~")
"""Files and folders that the documents' readers make themselves, or name themselves."""


def written() -> set[str]:
    """What the documents' commands write where they are given, by default or as they say."""
    found = {
        "stores/", "runs/x/", "sweeps/x/", "slurm/sweep-x/submit.sh", "mlflow.db", "mlartifacts/", ".mlflow.db.lock",
        "compare/", "bench/", "data/",
    }  # fmt: skip
    for page in PAGES:
        for line in lines_of(page):
            command = line.split(" #")[0].split("  ")[0].strip()
            if command.startswith("cp "):
                found.add(command.split()[-1])
            if command.startswith(("sargnn ", BENCHMARK)):
                found |= set(re.findall(r" (?:out|run_dir|bench_dir|store_dir)=(\S+)", command))
                found |= {f"slurm/{name}.sbatch" for name in re.findall(r"^sargnn slurm .*run_name=(\S+)", command)}
                found |= set(re.findall(r" > (\S+)", command))
    return {one for one in found if not one.startswith(OF_A_USER)}


def test_the_documents_commands_leave_nothing_untracked() -> None:
    places = sorted(written())
    assert {"conf/slurm/mine.yaml", "slurm/first.sbatch", "data/ogbn_products"} <= set(places)
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone, and git says nothing of it")
    done = subprocess.run(["git", "check-ignore", *places], cwd=ROOT, capture_output=True, text=True)
    assert set(places) == set(done.stdout.split()), done.stderr


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)\)", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)):
            if not link.startswith("http"):
                assert (page.parent / link).exists() or Path(link).name in MADE, f"{page.name}: {link}"
