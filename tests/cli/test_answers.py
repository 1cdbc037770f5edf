"""A table of what people type wrongly and what they are told: the answers are short, and what they say to write is right."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from sargnn.cli.command_line import read_command_line
from sargnn.cli.compose import compose_verb, sweep_points
from sargnn.cli.main import find_verb
from sargnn.errors import MOST_SHOWN
from sargnn.models import MODELS
from tests.cli.conftest import Sargnn
from tests.cli.own_options import write

NO_SETTING, NO_DASHES = "no setting '{}'", "without dashes"
ONE_WORD = "one word, with ="
HYDRA = "Hydra's own"

# What is typed: what the first line names; given, allowed, next (None: no such line; "...": any words).
ANSWERS: dict[str, tuple[str, str | None, str | None, str | None]] = {
    # a value of a setting that has few
    "train task=clases": (
        "'task'", "'clases'",
        "classes, multilabel, regression, nodes, links, edges, queries, FILE.py:CLASS", None,
    ),
    "prepare task=nodes": ("'task'", "'nodes'", "classes, multilabel, regression", None),
    # a setting by its last part, by another name, misspelt
    "train lr=0.1": (NO_SETTING.format("lr"), None, "optim.lr", "optim.lr=0.1"),
    "train learning_rate=0.1": (NO_SETTING.format("learning_rate"), None, "optim.lr", "optim.lr=0.1"),
    "train hiden=64": (NO_SETTING.format("hiden"), None, "model.hidden", "model.hidden=64"),
    "train model.lr=0.1": (NO_SETTING.format("model.lr"), None, "optim.lr", "optim.lr=0.1"),
    "train heads=4": (NO_SETTING.format("heads"), None, "model.heads (with model=gat)", "model=gat model.heads=4"),
    "train Epochs=3": (NO_SETTING.format("Epochs"), None, "epochs", "epochs=3"),
    "train Model=sage": (NO_SETTING.format("Model"), None, "model", "model=sage"),
    "train num_workers=4": (NO_SETTING.format("num_workers"), None, "world", "world=4"),
    "train hidden-size=64": (NO_SETTING.format("hidden-size"), None, "model.hidden", "model.hidden=64"),
    "train layers=2": (NO_SETTING.format("layers"), None, "model.num_layers", "model.num_layers=2"),
    "train +epoch=3": (NO_SETTING.format("epoch"), None, "epochs", "epochs=3"),
    "train +model.hiden=3": (NO_SETTING.format("model.hiden"), None, "model.hidden", "model.hidden=3"),
    "train nodes=300": (NO_SETTING.format("nodes"), None, "dataset.num_nodes", "dataset.num_nodes=300"),
    "train batch_size=32": (
        "no setting 'batch_size': the steps", None, None,
        "batches.steps=16...",
    ),
    "train gpus=2": ("no setting 'gpus': each process", None, None, "..."),
    "train zzz=1": (NO_SETTING.format("zzz"), None, None, "sargnn train --help..."),
    "train scale=2": (
        NO_SETTING.format("scale"), None,
        "dataset.scale (with dataset=products_like), smooth.scale (with smooth=cs)", None,
    ),
    # of another option, another verb
    "train model=sage model.heads=4": (
        "'model.heads' belongs to model=gat, rgat; chosen is model=sage.", None, None, "model=gat model.heads=4",
    ),
    "train +model.heads=4": (
        "'model.heads' belongs to model=gat, rgat; chosen is model=sage.", None, None, "model=gat model.heads=4",
    ),
    "train dataset=ogbn-products dataset.scale=0.1": (
        "'dataset.scale' belongs to dataset=mag_like, papers_like, products_like, proteins_like; "
        "chosen is dataset=ogbn-products.",
        None, None, "dataset=products_like dataset.scale=0.1",
    ),
    "train losses=equal": (
        "'losses' here: it belongs to sargnn compare",
        None, "optim.loss, links.loss", "sargnn compare losses=equal",
    ),
    "info what=all": ("'what' here: it belongs to sargnn clean", None, None, "sargnn clean what=all"),
    "predict optm.lr=3": (NO_SETTING.format("optm.lr"), None, "optim.lr", "optim.lr=3"),
    # options
    "train gat": ("'gat' is an option of 'model'", None, None, "model=gat"),
    "train none": (
        "'none' is an option of several groups", None,
        "model=none, labels=none, smooth=none, preload=none, tracking=none", None,
    ),
    "train gatt": (
        "A word cannot", "gatt",
        "model=gat, model=rgat, experiment=cora_gat, partitioner=auto, mode=auto, kernel=auto, preload=auto", "...",
    ),
    "train model=products_like": (
        "'products_like': it is one of 'dataset'", None, None, "dataset=products_like",
    ),
    "train model=SAGE": ("'model' has no option 'SAGE'", None, "sage, sgc", None),
    "train dataset=ppi": (
        "'dataset' has no option 'ppi'", None, None,
        "sargnn train dataset --help...conf/dataset/ppi.yaml...",
    ),
    "train dataset=./data": ("'dataset' has no option './data'", None, None, "dataset=arrays dataset.root=./data"),
    "train optim=sgd": (
        "'optim' has no option 'sgd'", None, "adam, adamw, custom", "conf/optim/sgd.yaml...",
    ),
    "train model.name=gat": ("'model.name'", "model.name=gat", None, "model=gat"),
    "train model": (
        "'model' needs", None, None, "write model=OPTION; sargnn train model --help...",
    ),
    "train model=[sage,gat]": ("'model' takes one option", "model=[sage,gat]", None, "-m model=sage,gat runs them all"),
    "train model=": ("'model' takes one option", "model=", None, "write model=OPTION"),
    # signs, spaces, dashes
    "train --model gat": (NO_DASHES, "--model gat", None, "model=gat"),
    "train --model=gat": (NO_DASHES, "--model=gat", None, "model=gat"),
    "train -epochs 5": (NO_DASHES, "-epochs 5", None, "epochs=5"),
    "train --hidden-size 64": (NO_DASHES, "--hidden-size 64", None, "model.hidden=64"),
    "train --mfg": (NO_DASHES, "--mfg", None, "mfg=true"),
    "compare --out x": (NO_DASHES, "--out x", None, "out=x"),
    "train epochs 5": (ONE_WORD, "epochs 5", None, "epochs=5"),
    "train world = 4": (ONE_WORD, "world = 4", None, "world=4"),
    "train world= 4": (ONE_WORD, "world= 4", None, "world=4"),
    "train world =4": (ONE_WORD, "world =4", None, "world=4"),
    "train model:gat": (ONE_WORD, "model:gat", None, "model=gat"),
    "train model=sage, gat": ("A list", "model=sage, gat", None, "-m model=sage,gat"),
    "train epochs": ("'epochs' needs a value", None, None, "epochs=60"),
    "train 'model = gat'": ("An override cannot", "model = gat", None, "model=gat"),
    "train model==gat": ("An override cannot", "model==gat", None, "model=gat"),
    "train 'model=gat;world=2'": ("An override cannot", "model=gat;world=2", None, "model=gat world=2"),
    "train 'run_dir=a (1)'": ("An override cannot", "run_dir=a (1)", None, "\"run_dir='a (1)'\""),
    "train optim.lr=1e-3,": ("An override cannot", "optim.lr=1e-3,", None, "optim.lr=1e-3"),
    "train --config-name=x": ("no flag '--config-name'", None, None, "..."),
    "train --version": ("no flag '--version'", None, None, "sargnn --version"),
    "train -v": ("no flag '-v'", None, "--help, --config-dir, --cfg, -m, --dry-run", None),
    # values
    "train world=[2,4]": ("'world' takes one value.", "[2, 4]", "a whole number", "-m world=2,4 runs them all"),
    "train model.hidden=[64]": ("'model.hidden' takes one value.", "[64]", "a whole number", "model.hidden=64"),
    "train epochs={a:1}": ("'epochs' takes one value.", "{'a': 1}", "a whole number", None),
    "train precision=bf16x3": ("'precision=bf16x3' is gone.", None, "fp32, or mixed", None),
    "train precision=[fp32]": (
        "'precision' takes one value.", "['fp32']", "fp32, fp64, bf16, mixed", "precision=fp32"
    ),
    "train epochs=10.0": ("'epochs'", "10.0", "a whole number", "epochs=10"),
    "train checkpoint=5": (
        "'checkpoint' must be a group", "5", "checkpoint.every, checkpoint.keep", None,
    ),
    "train \"epochs='5'\"": ("'epochs'", "'5'", "a whole number", "epochs=5"),
    "train threads=None": ("'threads' would be a text", "'None'", None, "threads=null"),
    "train world=2,4": ("several values", "world=2,4", None, "..."),
    "train dataset=python 'dataset.target=fn.py:f()'": (
        "without parentheses", "dataset.target=fn.py:f()", None, "dataset.target=fn.py:f",
    ),
    # sweeps
    "train -m optim.lr=interval(0,1)": (
        "An interval", "optim.lr=interval(0,1)", None, "...",
    ),
    "train -m model=glob(x*)": (
        "No option of 'model' is like this.", "model=glob(x*)", None, "sargnn train model --help lists its options",
    ),
    "train -m world=glob(*)": ("glob()", "world=glob(*)", None, "..."),
    "train -m seed=range(0,1e9)": ("too many values", "seed=range(0,1e9)", "at most 10,000", None),
    # Hydra's own
    "train hydra.run.dir=out": (HYDRA, "hydra.run.dir=out", None, "run_dir=out"),
    "train -m hydra.sweep.dir=out seed=1,2": (HYDRA, "hydra.sweep.dir=out", None, "..."),
    "train hydra.job.name=tour": (HYDRA, "hydra.job.name=tour", None, "run_name=tour"),
    "train hydra/launcher=joblib": (HYDRA, "hydra/launcher=joblib", None, "sargnn slurm -m..."),
    "train +hydra/sweeper=optuna": (HYDRA, "+hydra/sweeper=optuna", None, "..."),
    "train hydra.searchpath=[file://mine]": (
        HYDRA, "hydra.searchpath=[file://mine]", None,
        "--config-dir mine,...conf/...",
    ),
    # verbs, runs, folders
    "trian": ("no verb 'trian'", None, "train, track", "sargnn --help lists them"),
    "model=gat world=2": ("no verb 'model=gat'", None, None, "sargnn train model=gat world=2"),
    "-m seed=1,2": ("no verb '-m'", None, None, "sargnn train -m seed=1,2"),
    "gat": ("no verb 'gat'", None, None, "sargnn train model=gat"),
    "eval": ("no verb 'eval'", None, None, "sargnn evaluate RUN"),
    "train compare": ("One verb", "train ... compare", None, "sargnn compare"),
    "train tour": ("A word alone", "tour", None, "sargnn train resume=tour"),
    "check graph": ("A word alone", "graph", None, "sargnn check dataset=arrays dataset.root=graph"),
    "predict tuor": ("no such run", "tuor", "tour", None),
    "evaluate tuor": ("no such run", "tuor", "tour", None),
    "track tuor": ("no such run", "tuor", "tour", None),
    "slurm --status tuor": ("no such run", "tuor", "tour", None),
    "train resume=tuor": ("no such run", "tuor", "tour", None),
    "predict": ("A run must", None, "tour", "...run=NAME"),
}  # fmt: skip
MUST_FIT = re.compile(r"belongs to|would be one of your own")
"""Lines that may be longer than 80 columns: they list, or name a place."""


def lines_of(error: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {"what": None, "given": None, "allowed": None, "next": None}
    key = "what"
    for line in error.removeprefix("sargnn: ").splitlines():
        if named := re.match(r"  (given|allowed|next): +", line):
            key, line = named.group(1), line[named.end() :]
        found[key] = f"{found[key]} {line.strip()}" if found[key] else line.strip()
    return found


@pytest.mark.parametrize("typed", ANSWERS)
def test_an_answer(sargnn: Sargnn, tmp_path: Path, typed: str) -> None:
    run = tmp_path / "runs" / "tour"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("")
    (tmp_path / "graph").mkdir()
    what, given, allowed, following = ANSWERS[typed]
    words = shlex.split(typed)
    done = sargnn(*words)
    assert done.returncode == 1 and not done.stdout and "Traceback" not in done.stderr, done.stderr
    found = lines_of(done.stderr)
    assert what in str(found["what"]), done.stderr
    for key, expected in (("given", given), ("allowed", allowed), ("next", following)):
        pattern = ".+".join(map(re.escape, (expected or "").split("...")))
        assert (found[key] is None) == (expected is None) and re.fullmatch(pattern, found[key] or ""), done.stderr
    assert all(len(line) <= 80 or MUST_FIT.search(line) for line in done.stderr.splitlines()), done.stderr
    listed = (found["allowed"] or "").split(", ")
    assert len(listed) <= MOST_SHOWN
    values = {part for word in words[1:] for part in (word, word.partition("=")[0])}
    assert not values & set(listed) - {""}, "what was given is no answer"
    for command in re.split(r" or |; ", found["next"] or ""):
        check_command(words, command)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph", "runs"]


@pytest.mark.parametrize(
    ("given", "following"), [("model.hidden=3", "model.args.hidden=3"), ("model.tarqet=a.py:B", "model.target=a.py:B")]
)
def test_what_an_argument_of_a_target_is_called(sargnn: Sargnn, given: str, following: str) -> None:
    done = sargnn("train", "model=custom", "model.target=a.py:B", given)
    assert done.returncode == 1 and lines_of(done.stderr)["next"] == following, done.stderr


def check_command(words: list[str], command: str) -> None:
    """The words that an answer says to write can be composed, as a command of their own or in the place of the wrong ones."""
    text = re.sub(r" runs them all$|^write ", "", command)
    whole = re.fullmatch(r"sargnn ((?:[\w-]+ )+(?:-m )?[\w.]+=\S+(?: [\w.]+=\S+)*)", text)
    part = re.fullmatch(r"(?:-m )?[\w.]+=\S+(?: [\w.]+=\S+)*", text)
    if not (whole or part) or re.search(r"=(VALUE|OPTION|FOLDER|RUN|NAME|a,b)|\b(key|group)=|resume=", text):
        return
    verb, rest = find_verb(shlex.split(whole.group(1)) if whole else [words[0], *shlex.split(text)])
    line = read_command_line(verb, [*(["dataset=python"] if "dataset.target=" in text else []), *rest])
    if verb.config:
        points = sweep_points(verb.config, line.overrides, multirun=True) if line.multirun else None
        for point in points or [line.overrides]:
            compose_verb(verb.config, point)


def test_the_table_is_long_enough() -> None:
    assert len(ANSWERS) >= 40


def test_home_is_meant_by_a_tilde(sargnn: Sargnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "it's home"))
    done = sargnn("train", "dataset=arrays", "dataset.root=~/graph", "--cfg", "job")
    assert done.returncode == 0 and f"{tmp_path}/it's home/graph" in " ".join(done.stdout.split()), done.stderr


def test_hydras_settings_in_a_file_of_ones_own(sargnn: Sargnn, tmp_path: Path) -> None:
    write(tmp_path / "conf", experiment__mine="# @package _global_\n# Mine\nepochs: 3\nhydra:\n  run:\n    dir: out\n")
    done = sargnn("train", "experiment=mine")
    assert done.returncode == 1 and HYDRA in done.stderr and "conf/experiment/mine.yaml, line 6" in done.stderr, done.stderr


def test_an_own_option_is_among_the_answers(sargnn: Sargnn, tmp_path: Path) -> None:
    write(tmp_path / "conf", model__wide="# Wide\ndefaults: [sage, _self_]\nbreadth: 3   # ours\n")
    assert "model=wide model.breadth=4" in sargnn("train", "breadth=4").stderr
    assert "'wide' is an option of 'model'" in sargnn("train", "wide").stderr


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["model=glob(*)"], sorted(set(MODELS) - {"custom"})),
        (["model=glob(g*)"], ["gat", "gcn", "gcnii", "gin"]),
        (["dataset=glob(*_like,exclude=mag*)"], ["papers_like", "products_like", "proteins_like"]),
        (["dataset=glob([pap*,mag*])"], ["mag_like", "papers_like"]),
        (["world=range(1,4)"], ["1", "2", "3"]),
        (["world=choice(1,2)"], ["1", "2"]),
        (["world=sort(3,1,2)"], ["1", "2", "3"]),
    ],
)
def test_values_of_a_sweep(words: list[str], values: list[str]) -> None:
    points = sweep_points("train", words, multirun=True)
    assert points is not None and [point[0].partition("=")[2] for point in points] == values


def test_a_shuffled_sweep_is_the_same_each_time() -> None:
    """So that it goes on where it stopped."""
    once, again = (sweep_points("train", ["seed=shuffle(range(0,30))"], multirun=True) for _ in range(2))
    assert once == again and once != sorted(once or [])
    assert once is not None and {word for (word,) in once} == {f"seed={number}" for number in range(30)}
