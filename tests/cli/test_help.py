"""Help, completion and what is shown, of every verb: light, 80 columns, and true."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from sargnn.cli.command_line import read_command_line
from sargnn.cli.conf import OVERRIDING, built_in_folder
from sargnn.cli.help import SCRIPTS, candidates
from sargnn.cli.verb import Verb
from sargnn.cli.verbs import VERBS
from sargnn.errors import ConfigError
from sargnn.resolve import resolve
from tests.cli.conftest import Sargnn
from tests.cli.every_verb import EVERY_VERB

HEAVY = ("torch", "dgl", "mlflow", "pandas", "hydra")
PINNED = Path(__file__).parent / "help"
EVERY = [pytest.param(verb, id=verb.name) for verb in EVERY_VERB]


def settings_of(verb: Verb) -> list[str]:
    """Every setting that stands in no group."""
    own = [setting.name for setting in verb.settings]
    return own + (list(built_in_folder().settings(verb.config)) if verb.config else [])


@pytest.mark.parametrize("verb", EVERY)
def test_help(sargnn: Sargnn, verb: Verb) -> None:
    """It names the verb, its settings, its groups with all their options and its flags; 80 columns."""
    done = sargnn(*verb.name.split(), "--help")
    assert done.returncode == 0 and not done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert done.stdout.startswith(f"usage: sargnn {verb.name} ") and "example" in done.stdout
    for setting in verb.settings:
        assert f"  {setting.name}=" in done.stdout and setting.comment
    for below in verb.verbs:
        assert below.name in done.stdout
    if verb.config and not verb.changes_a_run:
        folders = built_in_folder()
        assert all(f"  {key}=" in done.stdout for key in folders.settings(verb.config))
        for group in folders.groups(verb.config):
            for name, option in folders.options(group).items():
                assert f"  {group}={name}" in done.stdout and option.sentence, (group, name)
    for command, _ in verb.examples:
        assert command.startswith(verb.name)
    if not verb.config:  # those that compose a configuration have hundreds of lines, which their classes say
        pinned = PINNED / f"{verb.name.replace(' ', '_')}.txt"
        if os.environ.get("SARGNN_PIN"):
            pinned.write_text(done.stdout)
        assert done.stdout == pinned.read_text()


@pytest.mark.parametrize("verb", EVERY)
def test_completion_gives_settings(verb: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = verb.name.split()
    if verb.verbs:
        assert candidates([*words, ""]) == [below.name.split()[-1] for below in verb.verbs]
        return
    found = candidates([*words, ""])
    assert {f"{name}=" for name in settings_of(verb)} | set(verb.choices) <= set(found)
    for name in settings_of(verb):
        assert f"{name}=" in candidates([*words, name[:2]])
    if verb.config:
        assert {f"{group}=" for group in built_in_folder().groups(verb.config)} <= set(found)
    assert set(candidates([*words, "--"])) == {flag for flag in verb.flags if flag.startswith("--")}


@pytest.mark.parametrize("verb", EVERY)
def test_unknown_settings_are_answered_with_the_nearest(sargnn: Sargnn, verb: Verb) -> None:
    known = settings_of(verb)
    if verb.verbs:
        below = verb.verbs[0].name
        done = sargnn(*below[:-1].split())
        assert done.returncode == 1 and f"no verb '{below[:-1]}'" in done.stderr and f"allowed: {below}" in done.stderr
        return
    if not known:
        done = sargnn(*verb.name.split(), "zzz=1")
        assert done.returncode == 1 and "no setting 'zzz'" in done.stderr
        return
    for name in (known[0], known[-1]):
        done = sargnn(*verb.name.split(), f"{name}x=1")
        assert done.returncode == 1 and f"no setting '{name}x'" in done.stderr, done.stderr
        allowed = next(line for line in done.stderr.splitlines() if "allowed:" in line)
        assert name in allowed.replace(",", " ").split(), done.stderr


@pytest.mark.parametrize("verb", EVERY)
def test_every_entry_is_there(verb: Verb) -> None:
    for place in ([verb.entry] if verb.entry else []) + list(verb.instead.values()):
        assert callable(resolve("verb", {verb.name: place}, verb.name))
    assert bool(verb.entry) != bool(verb.verbs)


@pytest.mark.parametrize("verb", EVERY)
def test_flags_that_do_not_exist(verb: Verb) -> None:
    if verb.entry:
        with pytest.raises(ConfigError, match="no flag '--hepl'.\n  allowed: --help"):
            read_command_line(verb, ["--hepl"])


def test_help_and_completion_are_light() -> None:
    """One process for all of them: none imports what takes time."""
    calls = [[*verb.name.split(), "--help"] for verb in EVERY_VERB]
    calls += [["--help"], ["train", "--help", "experiment=cora_gat"]]
    calls += [["completion", "--candidates", *verb.name.split(), ""] for verb in EVERY_VERB]
    script = (
        f"import sys; from sargnn.cli.main import main; codes = [main(words) for words in {calls!r}]; "
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr); sys.exit(sum(codes))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.strip() == "[]", done.stderr


def test_every_group_is_one_of_train_or_slurm() -> None:
    folders = built_in_folder()
    found = {path.name for path in folders.built_in.iterdir() if path.is_dir()}
    assert set(folders.groups("train")) == found - {"slurm", "figure", "race"}
    assert set(folders.groups("slurm")) == found - {"figure", "race"}


def test_groups_and_their_defaults_are_those_that_hydra_finds() -> None:
    """Help reads defaults lists without Hydra; Hydra composes by them."""
    folders = built_in_folder()
    with initialize_config_dir(config_dir=str(folders.built_in), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        for verb in (verb.config for verb in EVERY_VERB if verb.config):
            choices = loader.compute_defaults_list(verb, [], RunMode.RUN).overrides.known_choices
            known = {group: option or "null" for group, option in choices.items() if not group.startswith("hydra/")}
            assert folders.groups(verb) == known
            for group in known:
                assert set(folders.options(group)) == {
                    option for option in loader.get_group_options(group) if not option.startswith("_")
                }


def test_help_of_chosen_options(sargnn: Sargnn) -> None:
    """The options on the line with their settings, as the line and its experiment have them."""
    done = sargnn("train", "--help", "model=gat", "mode=sar", "model.heads=7")
    assert done.returncode == 0 and max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "model=gat: GAT" in done.stdout and "mode=sar: Seq" in done.stdout and "mode=one_shot" not in done.stdout
    assert "  model.heads=7             concatenated" in done.stdout
    assert "  model.attn_dropout=0.0    of attention weights" in done.stdout and "aggregator" not in done.stdout
    done = sargnn("train", "experiment=cora_gat", "--help")
    for text in (
        "experiment=cora_gat: Cora",
        "dataset=ogb_dir: ",
        "model=gat: ",
        "  epochs=200",
        "  model.hidden=8            per head",
    ):
        assert text in done.stdout, done.stdout
    done = sargnn("train", "--help", "experiment=cora_gat", "model=sage")
    assert "model=sage: " in done.stdout and "model=gat" not in done.stdout
    done = sargnn("train", "--help", "model=gatt")
    assert done.returncode == 1 and "'model' has no option 'gatt'" in done.stderr and "gat" in done.stderr.split("allowed:")[1]


def test_defaults_of_a_verb_that_builds_on_another(sargnn: Sargnn) -> None:
    """bench epoch takes another dataset and other epochs than train."""
    text = sargnn("bench", "epoch", "--help").stdout
    assert text.index("dataset=products_like") < text.index("dataset=synthetic")
    assert text.count("  epochs=") == 1 and "  epochs=6 " in text


def test_the_configuration_is_shown_and_nothing_runs(sargnn: Sargnn, tmp_path: Path) -> None:
    done = sargnn("train", "model=gat", "world=3", "--cfg", "job")
    assert done.returncode == 0 and "world: 3" in done.stdout and "attn_dropout" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["tr"], ["train", "track"]),
        (["train", "mode=s"], ["mode=sar"]),
        (["train", "mod"], ["model=", "mode="]),
        (["train", "model.h"], ["model.head=", "model.heads=", "model.hidden="]),
        (["train", "model=sage", "model.h"], ["model.head=", "model.hidden="]),
        (["train", "experiment=cora_gat", "dataset.r"], ["dataset.root="]),
        (["train", "mfg="], ["mfg=true", "mfg=false"]),
        (["train", "world="], []),
        (["train", "--c"], ["--config-dir", "--cfg"]),
        (["partition", "partitioner=r"], ["partitioner=random", "partitioner=range"]),
        (["export-ogb", "o"], ["out="]),
        (["predict", "checkpoint="], ["checkpoint=newest", "checkpoint=best"]),
        (["predict", "run="], ["run=one", "run=two", "run=abc/000", "run=abc"]),
        (["predict", "o"], ["one", "out=", "optim="]),
        (["predict", "one", "o"], ["out=", "optim="]),
        (["train", "resume=t"], ["resume=two"]),
        (["train", "init_from=runs/o"], ["init_from=runs/one"]),
        (["train", "model=gat", "model.h"], ["model.head=", "model.heads=", "model.hidden="]),
        (["train", "-m", "model=sage,label_propagation", "model.al"], ["model.alpha="]),
        (["train", "-m", "model=glob(g*)", "model.ag"], []),
        (["train", "-m", "model=glob(*)", "model.ag"], ["model.aggregator="]),
        (["train", "-m", "model=sage,g"], [f"model=sage,{one}" for one in ("gat", "gcn", "gcnii", "gin")]),
        (["train", "precision="], [f"precision={one}" for one in ("fp32", "fp64", "bf16", "mixed")]),
        (["train", "model=rgcn", "model.order=t"], ["model.order=transform_first"]),
        (["train", "-m", "optim.schedule=step,c"], ["optim.schedule=step,constant", "optim.schedule=step,cosine"]),
        (["train", "dataset.add_self_loops="], [f"dataset.add_self_loops={one}" for one in ("true", "false", "null")]),
        (["train", "metric=ro"], ["metric=rocauc"]),
        (["export-ogb", "layout=b"], ["layout=binary"]),
        (["bench", "epoch", "precision=f"], ["precision=fp32", "precision=fp64"]),
        (["train", "--d"], ["--dry-run"]),
        (["predict", "em"], ["embeddings="]),
        (["predict", "embeddings=t"], ["embeddings=true"]),
        (["predict", "kernel=d"], ["kernel=dgl"]),
        (["evaluate", "run=runs/t"], ["run=runs/two"]),
        (["evaluate", "t"], ["two"]),
        (["compare", "runs/"], ["runs/one", "runs/two"]),
        (["compare", "t"], ["two"]),
        (["track", "ab"], ["abc/000", "abc"]),
        (["compare", "o"], ["one", "out="]),
        (["compare", "out=r"], ["out=runs"]),
        (["compare", "baseline=runs/o"], ["baseline=runs/one"]),
        (["compare", "--"], ["--help", "--json", "--csv"]),
        (["track", "--follow", ""], ["one", "two", "abc/000", "abc"]),
        (["slurm", "--status", ""], ["one", "two", "abc/000", "abc"]),
        (["slurm", "slurm.no"], ["slurm.nodes="]),
        (["clean", "what="], ["what=all", "what=datasets", "what=partitions"]),
        (["bench", "g"], ["gpu"]),
        (["bench", "gpu", "wid"], ["widths="]),
        (["bench", "epoch", "model=ga"], ["model=gat"]),
        (["completion", "f"], ["fish"]),
        (["train", "zzz"], []),
        (["nothing", ""], []),
    ],
)
def test_candidates(words: list[str], found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(("sweeps/abc/000", "runs/two", "runs/one")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text("")
        os.utime(tmp_path / name / "config.yaml", (number, number))
    monkeypatch.chdir(tmp_path)
    assert candidates(words) == found


def test_bash_completes(tmp_path: Path) -> None:
    folder = Path(sys.executable).parent
    script = f"""
export PATH={folder}:$PATH
source <(sargnn completion bash)
complete_it() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _sargnn 2>/dev/null; echo "${{COMPREPLY[@]}}"; }}
complete_it sargnn ""
complete_it sargnn bench ""
complete_it sargnn clean w
complete_it sargnn tr
complete_it sargnn train mode = s
complete_it sargnn train kernel =
complete_it sargnn train model = gat model.h
complete_it sargnn train precision = f
complete_it sargnn train resume =
complete_it sargnn train -m seed = 1 model = sage,g
"""
    (tmp_path / "runs" / "tour").mkdir(parents=True)
    (tmp_path / "runs" / "tour" / "config.yaml").write_text("")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    benchmarks = " ".join(below.name.split()[-1] for below in VERBS["bench"].verbs)
    assert done.stdout.splitlines() == [
        " ".join(VERBS), benchmarks, "what=", "train track", "sar", "auto dgl fused reference triton",
        "model.head= model.heads= model.hidden=", "fp32 fp64", "tour", "sage,gat sage,gcn sage,gcnii sage,gin",
    ], done.stdout + done.stderr  # fmt: skip


def test_every_shell_has_a_script(sargnn: Sargnn) -> None:
    assert tuple(SCRIPTS) == VERBS["completion"].choices
    for shell in SCRIPTS:
        done = sargnn("completion", shell)
        assert done.returncode == 0 and "sargnn completion --candidates" in done.stdout


COMMENTS_OF_THEIR_OWN = ("cases.", "more.")
"""Mappings whose comment stands at their head."""


def test_every_setting_has_a_comment() -> None:
    """So that help says something about each."""
    folders = built_in_folder()
    found = [one for verb in EVERY_VERB if verb.config for one in folders.settings(verb.config).values()]
    for group in folders.groups("slurm"):
        for option in folders.options(group) if group not in OVERRIDING else ():
            found += [one for one in folders.settings_of(group, option).values() if one.key != f"{group}.name"]
    bare = {f"{one.path}: {one.key}" for one in found if not one.comment and not one.key.startswith(COMMENTS_OF_THEIR_OWN)}
    assert not bare and len(found) > 300


def test_help_of_a_word_alone(sargnn: Sargnn) -> None:
    """A group has its options listed, an option and a setting are shown, in whatever order."""
    options = sargnn("train", "dataset", "--help").stdout
    assert "dataset=ogbn-arxiv" in options and "options of dataset" in options and "model=" not in options
    assert "  model.heads=4             concatenated" in sargnn("train", "gat", "--help").stdout
    for words in (["lr", "--help"], ["--help", "lr"], ["optim.lr", "help"]):
        assert "  optim.lr=0.01             learning rate" in sargnn("train", *words).stdout
    assert "with model=gat: concatenated" in sargnn("train", "--help", "heads").stdout
    both = sargnn("train", "-m", "model=glob(g*)", "--help").stdout
    assert "model=gat: " in both and "model=gcn: " in both and "model=sage" not in both
    assert sargnn("help", "clean").stdout == sargnn("clean", "--help").stdout


@pytest.mark.parametrize(("shell", "command"), [("zsh", ["-fc"]), ("fish", ["--no-config", "-c"])])
def test_other_shells_complete(shell: str, command: list[str], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    folder = Path(sys.executable).parent
    (tmp_path / "script").write_text(SCRIPTS[shell])
    if shell == "fish":
        script = f"source {tmp_path}/script; complete -C 'sargnn train model=gat model.heads'"
    else:  # as the line editor calls it
        script = f"""
compdef() {{ :; }}; compadd() {{ shift 3; print -l -- "$@"; }}
source {tmp_path}/script; words=(sargnn train model=gat model.heads); CURRENT=4; _sargnn"""
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run([shell, *command, script], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stdout.split() == ["model.heads="], done.stdout + done.stderr
