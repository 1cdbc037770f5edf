"""Every file on docs/OWN_DATA.md and docs/PYTHON.md is written into an empty folder, and every command there is run."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from sargnn.tracking.summary import read_summary
from tests.in_process import sargnn_here
from tests.processes import ROOT, run_command


def files_of(text: str) -> dict[str, str]:
    return dict(re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", text, flags=re.S))


@pytest.mark.parametrize("page", ["OWN_DATA.md", pytest.param("PYTHON.md", marks=pytest.mark.long)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_every_command(page: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / page).read_text()
    if "torch_geometric" in text:
        pytest.importorskip("torch_geometric")
    for name, content in files_of(text).items():
        (tmp_path / name).write_text(content)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    commands = re.findall(r"^    ((?:sargnn|python|torchrun) .+)$", text, flags=re.M)
    assert len(commands) >= 3 and not re.search(r"```(?!python\n|\n)", text)
    for command in commands:
        program, *words = shlex.split(command.split("  #")[0])
        if program == "sargnn":
            done = sargnn_here(tmp_path, *words)
        elif program == "python":
            done = run_command([sys.executable, *words], tmp_path, timeout_s=300)
        else:
            done = run_command([sys.executable, "-m", "torch.distributed.run", *words], tmp_path, timeout_s=300)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    if page == "OWN_DATA.md":
        runs = [read_summary(tmp_path / "runs" / name) for name in ("sage-sar-w2-s0", "sage-sar-w2-s0-2", "sage-sar-w2-s0-3")]
        assert all(run is not None for run in runs)
        found = {(run.dataset_hash, *run.losses) for run in runs if run is not None}
        assert len(found) == 1, "a mapping, a DGLGraph and a Data of one graph differ"
    else:
        assert "test accuracy" in done.stdout and (tmp_path / "short.png").stat().st_size > 10_000
