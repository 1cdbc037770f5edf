"""Help, completion and what is shown: light, 80 columns, and true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sargnn.cli.completion import candidates
from sargnn.cli.help import groups_of, options_of
from sargnn.cli.main import VERBS, conf_dir
from tests.launch.test_train import run

HEAVY = ("torch", "dgl", "mlflow", "numba", "pandas", "hydra")


@pytest.mark.parametrize("words", [[], *([verb] for verb in VERBS), ["bench", "kernels"]])
def test_help_is_light_and_fits(words: list[str]) -> None:
    script = (
        f"import sys; from sargnn.cli.main import main; code = main({[*words, '--help']!r}); "
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.strip() == "[]", done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert done.stdout.startswith("usage: sargnn") and "example" in done.stdout


def test_help_names_every_group_and_option(tmp_path: Path) -> None:
    text = run(tmp_path, "train", "--help").stdout
    folders = {path.name for path in conf_dir().iterdir() if path.is_dir()}
    assert set(groups_of("train")) == folders - {"slurm"} and set(groups_of("slurm")) == folders
    for group in groups_of("train"):
        for option, sentence in options_of(group).items():
            assert f"{group}={option}" in text and sentence, (group, option)


def test_the_configuration_is_shown_and_nothing_runs(tmp_path: Path) -> None:
    done = run(tmp_path, "train", "model=gat", "world=3", "--cfg", "job")
    assert done.returncode == 0 and "world: 3" in done.stdout and "attn_dropout" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["tr"], ["train", "track"]),
        (["train", "mode=s"], ["mode=sar"]),
        (["train", "mod"], ["model=", "mode="]),
        (["train", "model.h"], ["model.heads=", "model.hidden="]),
        (["partition", "partitioner=r"], ["partitioner=random", "partitioner=range"]),
        (["completion", "f"], ["fish"]),
        (["train", "zzz"], []),
    ],
)
def test_candidates(words: list[str], found: list[str]) -> None:
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
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        " ".join(VERBS), "kernels", "what=", "train track", "sar", "auto dgl fused reference",
    ], done.stdout + done.stderr  # fmt: skip


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(tmp_path: Path, shell: str) -> None:
    done = run(tmp_path, "completion", shell)
    assert done.returncode == 0 and "sargnn completion --candidates" in done.stdout
