"""Every file on the pages about modules and options of one's own is written into a folder, every command is run; the losses are
those of one worker."""

from __future__ import annotations

import ctypes
import dataclasses
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from sargnn import native
from sargnn.backends.block import EdgeBlock
from sargnn.bf16 import wide
from sargnn.cli.compose import compose_verb, sweep_points
from sargnn.comm.group import Group
from sargnn.config.run import RunConfig, parse
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.graph.dataset import open_dataset
from sargnn.native import build
from sargnn.partition import PARTITIONERS
from sargnn.partition.cut import parts_of
from sargnn.report.bench.gpu import whole_plan
from sargnn.resolve import resolve
from sargnn.sources.prepare import prepare_dataset
from sargnn.tracking.summary import read_summary
from sargnn.training.build import make_trainer
from tests.in_process import sargnn_here as run
from tests.parity.covering import only

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / "docs" / "howto" / f"{name}.md" for name in ("pyg-model", "dgl-model", "module-rules")),
    *sorted((ROOT / "docs" / "maintainers").glob("extend-*.md")),
]
TEXTS = {page.stem: page.read_text() for page in PAGES}
TEXT = "\n".join(TEXTS.values())
NAMED = re.compile(r"`([\w/]+\.(?:py|yaml))`:\n\n```\w+\n(.*?)```", flags=re.S)
FILES = dict(NAMED.findall(TEXT))
"""The pages together: those of one page fit those of another."""
DATA = dict(re.findall(r"`([\w/]+\.jsonl)`:\n\n```text\n(.*?)```", TEXT, flags=re.S))
CPP = dict(re.findall(r"`([\w/]+\.cpp)`:\n\n```cpp\n(.*?)```", TEXT, flags=re.S))


def commands(text: str) -> list[list[str]]:
    """The words of a page's commands, without ``sargnn``."""
    blocks = re.findall(r"^```bash\n(.*?)^```", text, flags=re.M | re.S)
    lines = [line.split("  #")[0] for block in blocks for line in block.splitlines()]
    return [shlex.split(line.removeprefix("sargnn ")) for line in lines]


COMMANDS = commands(TEXT)
SINGLE = [words[1:] for words in COMMANDS if words[0] == "train" and "-m" not in words]
SHORT = ["dataset.num_nodes=600", "epochs=2", "tracking=none"]
"""What the first command of a page, which shows no such settings, is run with."""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the pages, which is the working folder."""
    for name, text in (FILES | DATA).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def losses_on_one_worker(words: list[str]) -> list[float]:
    """Of the run that a command line describes, in this process."""
    config = dataclasses.replace(parse(compose_verb("train", words)), world=1, threads=1)
    dataset = open_dataset(prepare_dataset(config.dataset, config.store_dir), verify=False)
    assignment = resolve("partitioner", PARTITIONERS, config.partitioner.choice)(dataset, 2, config.partitioner)
    assert assignment.dtype == np.int32 and set(assignment) == {0, 1}
    (part,) = parts_of(dataset, np.zeros(dataset.num_nodes, np.int32), 1)
    return make_trainer(config, part, dataset.num_classes, Group.single()).run().losses


def test_the_pages_have_a_file_and_a_command_for_each_kind() -> None:
    kinds = {name.split("/")[1] for name in FILES if name.startswith("conf/")}
    assert kinds == {"model", "dataset", "mode", "kernel", "partitioner"}
    named = NAMED.findall(TEXT)
    assert len(FILES) == len(named) == len(re.findall(r"^```(?:python|yaml)$", TEXT, flags=re.M)) == 29
    assert not re.search(r"^```(?!python$|yaml$|cpp$|bash$|text$|$)|^    sargnn", TEXT, flags=re.M)
    assert len(SINGLE) == 22 and all("epochs=2" in words for words in SINGLE[1:])
    given = [word.partition("=")[2] for words in SINGLE for word in words]
    assert all(Path(name).stem in given for name in FILES if name.startswith("conf/"))


@pytest.mark.parametrize("page", TEXTS)
def test_a_page_has_all_files_of_its_commands(page: str) -> None:
    files = {name for name, _ in NAMED.findall(TEXTS[page])}
    options = {name.removeprefix("conf/").removesuffix(".yaml").replace("/", "=") for name in FILES if name.startswith("conf/")}
    for words in commands(TEXTS[page]):
        for word in words:
            if match := re.search(r"=(\w+\.py):", word):
                assert match[1] in files, f"{page}: {word}"
            if word in options:
                assert f"conf/{word.replace('=', '/')}.yaml" in files, f"{page}: {word}"
    used = "\n".join([*map(" ".join, commands(TEXTS[page])), *(text for _, text in NAMED.findall(TEXTS[page]))])
    used += (
        "sargnn=backends=squares=reference.py sargnn=backends=squares=fused.py"  # no files of a command: `test_a_sum_in_cpp`
    )
    for name in files - {"profile_sums.py"}:
        assert (name.removeprefix("conf/").removesuffix(".yaml").replace("/", "=") if "/" in name else f"{name}:") in used, name


def test_the_modules_are_those_of_the_examples() -> None:
    examples = {name: text for name, text in FILES.items() if (ROOT / "examples" / "layers" / name).exists()}
    assert set(examples) == {"pyg_gcn.py", "pyg_flow.py", "gin.py", "edge_features.py", "written.py", "typed.py", "sgformer.py"}
    for name, text in examples.items():
        assert text == (ROOT / "examples" / "layers" / name).read_text()
    code = examples["gin.py"].split('"""')[2]
    assert len([line for line in code.splitlines() if line.strip()]) == 13


@pytest.mark.parametrize("words", only(SINGLE[::4], SINGLE), ids=lambda words: " ".join(words[:3]))
def test_an_example_trains_in_every_mode_and_precision_alike(words: list[str], mine: Path) -> None:
    words = words if "epochs=2" in words else [*words, *SHORT]
    exact = [*words, "precision=fp64", "partitioner.order=original"]
    losses = losses_on_one_worker(exact)
    assert len(losses) == 2 and losses[0] != losses[1]
    np.testing.assert_allclose(losses_on_one_worker(words), losses, rtol=1e-5)
    if not any(word.startswith(("mode=", "kernel=")) for word in words):
        np.testing.assert_allclose(losses_on_one_worker([*exact, "mode=domain_parallel"]), losses, rtol=1e-8)


def test_all_of_them_together_on_two_workers(mine: Path) -> None:
    """The pages' options of every kind in one command; its losses are those of one worker with the package's strategies."""
    model = ["model=sage_squares", "dataset=grid", "model.hidden=16", "epochs=2", "tracking=none", "precision=fp64"]
    done = run(mine, "train", *model, "mode=refetch", "kernel=scatter", "partitioner=by_degree", "world=2", "run_name=ours")
    assert done.returncode == 0, done.stderr
    summary = read_summary(mine / "runs" / "ours")
    assert summary is not None and summary.mode == "refetch" and summary.kernel == "scatter"
    np.testing.assert_allclose(summary.losses, losses_on_one_worker(model), rtol=1e-8)


@pytest.mark.parametrize("kernel", ["auto", "scatter.py:Scatter"])
def test_the_own_reducer_and_kernel_sum_bf16_rows_in_fp32(kernel: str, mine: Path) -> None:
    """A sum of a thousand ones, which in bf16 would stop at 256."""
    ends = torch.arange(1000, dtype=torch.int32), torch.zeros(1000, dtype=torch.int32)
    engine = Engine(Group.single(), EngineSettings(mode="sar", kernel=kernel, dtype=torch.bfloat16))
    reducer = resolve("reducer", {}, "mean_square.py:MeanSquare")()
    (out,) = engine.aggregate(whole_plan(EdgeBlock(*ends, 1000, 1000)), reducer, (torch.ones(1000, 16, dtype=torch.bfloat16),))
    assert out.dtype == torch.bfloat16 and torch.equal(out[0], torch.ones(16, dtype=torch.bfloat16))


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[0] == "check"], ids=lambda words: words[2])
@pytest.mark.long
def test_the_check_of_two_worlds_agrees(words: list[str], mine: Path) -> None:
    done = run(mine, *words)
    assert done.returncode == 0 and "All agree on 1 and on 3 workers" in done.stdout, done.stdout + done.stderr


def test_two_modules_are_checked() -> None:
    assert [words[2] for words in COMMANDS if words[0] == "check"] == ["model.target=gin.py:Gin", "model.target=rules.py:Net"]


def test_the_sweep_that_shows_exactness_can_be_started(mine: Path) -> None:
    (sweep,) = [words[2:] for words in COMMANDS if "-m" in words]
    points = sweep_points("train", sweep, multirun=True)
    assert points is not None and len(points) == 6
    assert all(isinstance(parse(compose_verb("train", point)), RunConfig) for point in points)
    (compare,) = [words for words in COMMANDS if words[0] == "compare"]
    assert "losses=equal" in compare


def test_a_sum_in_cpp(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's file in C++ beside the package's headers, built for this processor."""
    ((place, text),) = CPP.items()
    assert Path(place).parent == Path("sargnn/native/src")
    one = torch.zeros(1, dtype=torch.int32)
    _ = EdgeBlock(one, one, 1, 1)  # what a block calls is found in the package's library, which has all functions
    sources = mine / "package" / "native" / "src"
    shutil.copytree(
        build.SOURCES, sources, ignore=lambda _, names: {name for name in names if name.endswith(".cpp")} - {"threads.cpp"}
    )
    (sources / Path(place).name).write_text(text)
    monkeypatch.setattr(build, "SOURCES", sources)
    try:
        build.build([native.chosen()], mine / "lib")
    except build.BuildError as error:
        pytest.skip(str(error))
    own = ctypes.CDLL(str(build.library_path(native.chosen(), mine / "lib")))
    monkeypatch.setattr(native, "library", lambda of: own)
    for name in ("sargnn.backends.squares", "sargnn.backends.squares.reference", "sargnn.backends.squares.fused"):
        module = ModuleType(name)
        exec(FILES.get(f"{name.replace('.', '/')}.py", ""), vars(module))
        monkeypatch.setitem(sys.modules, name, module)
    squares = vars(module)["FusedSquares"]()
    draw = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for width in (1, 16, 63, 65):
            ends = torch.randint(0, 20, (2, 150), generator=draw, dtype=torch.int32)
            ends[1] = ends[1].sort().values
            block, src = EdgeBlock(ends[0], ends[1], 20, 20), torch.randn(20, width, generator=draw).to(dtype)
            out = torch.zeros(20, width, dtype=wide(dtype))
            squares.forward(block, src, out)
            wanted = torch.zeros(20, width, dtype=torch.float64).index_add_(0, ends[1], src.double()[ends[0].long()] ** 2)
            rtol = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 1e-2}[dtype]
            torch.testing.assert_close(out.double(), wanted, rtol=rtol, atol=0.0)
            grad, gradient = (
                torch.randn(20, width, generator=draw, dtype=torch.float64),
                torch.empty(20, width, dtype=torch.float64),
            )
            squares.backward(block, src.double(), grad, gradient)
            of_edges = torch.zeros_like(gradient).index_add_(0, ends[0], grad[ends[1].long()])
            torch.testing.assert_close(gradient, 2 * src.double() * of_edges)


def test_what_is_profiled_runs() -> None:
    exec(FILES["profile_sums.py"].replace("50_000", "50").replace("1_000_000", "100"), {})
