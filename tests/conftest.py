"""Settings of all tests, and what is checked when they end."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch
from zlib import crc32

import pytest

from sargnn.interop.dgl import install_finder
from tests import leftovers
from tests.environment import set_up_environment

pytest.register_assert_rewrite("tests.backends", "tests.parity")  # a check that fails in a helper shows its values
set_up_environment()
install_finder()  # some tests import dgl as a user's file does
os.environ.setdefault("DGLBACKEND", "pytorch")

# A shell's background jobs and nohup ignore these, and so would all that the tests start. What is handled here instead, by
# nothing, is back at its default in every program that is started.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# The dearest files, the dearest first, so that no process begins one when the others are done (seconds: tests/README.md).
_FIRST = (
    "run/test_train",
    "generated/test_steps",
    "parity/test_first_step",
    "parity/test_recipe",
    "parity/test_pyg_curves",
    "parity/test_links",
    "parity/test_partials",
    "device/test_loop",
    "training/test_checkpoint",
    "comm/test_exchange",
    "parity/test_edge_features",
    "modules/test_edge_attr_training",
    "training/worlds/test_differences",
    "parity/test_edge_weights",
    "export/test_export",
    "parity/test_curves",
    "tasks/test_full_ranks",
    "backends/cuda/test_edges",
    "tasks/test_correct_smooth",
    "run/test_without_dgl",
    "parity/test_servers",
    "modules/test_pyg_layers",
    "run/test_processes",
    "parity/test_tuned",
    "comm/test_shared",
    "parity/test_steps",
    "parity/test_bf16",
    "training/test_own",
    "backends/test_attention",
    "memory/test_complete",
    "backends/cuda/test_rows",
    "cli/test_readme",
    "run/test_other_graph",
    "modules/test_every_function",
    "parity/test_interpreted",
    "parity/test_edges",
    "training/test_servers",
    "cli/test_compare",
    "slurm/test_script",
    "comm/test_nccl",
    "config/test_run",
    "parity/test_batches",
    "memory/test_plan_views",
    "cli/test_tasks",
    "parity/test_custom",
    "training/test_init_from",
    "cli/test_mistakes",
    "comm/test_staging",
    "backends/cuda/test_compile",
)

SHARED = Path(__file__).parent.parent.parent / "shared"
_mark = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tenth", type=int, metavar="N", help="of the tests that are marked long only the tenth N, 0 to 9")


def pytest_report_header(config: pytest.Config) -> str | None:
    tenth = config.option.tenth
    return None if tenth is None else f"of the long tests tenth {tenth} of 0 to 9; again: make test TENTH={tenth}"


def pytest_configure(config: pytest.Config) -> None:
    """Mark what this session starts; for workers of pytest-xdist their parent has done it."""
    from tests import configs
    from tests.parity import covering  # not before its rewriting is asked for

    configs.keep_read_files()
    covering.LONG = "not long" not in config.option.markexpr
    if not hasattr(config, "workerinput"):
        config.stash[_mark] = leftovers.mark_session()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files first, then those with the most tests; the order within a file stays."""
    if (tenth := config.option.tenth) is not None:  # drawn by names, so that it does not move when a test is added
        items[:] = [one for one in items if not one.get_closest_marker("long") or crc32(one.nodeid.encode()) % 10 == tenth]
    size = Counter(item.nodeid.partition("::")[0] for item in items)

    def place(item: pytest.Item) -> tuple[int, int]:
        file = item.nodeid.partition("::")[0]
        name = file.removeprefix("tests/").removesuffix(".py")
        return (_FIRST.index(name) if name in _FIRST else len(_FIRST)), -size[file]

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """What is there by now stays: a collection of garbage need not look at it again, nor after every few allocations."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="module", autouse=True)
def _environment() -> Iterator[None]:
    """A command that runs here says in the environment how many threads its workers have; no other file's tests see that."""
    with patch.dict(os.environ):
        yield


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End this process's pools of workers; at the end of everything, fail if a process of the suite is still alive."""
    if pools := sys.modules.get("tests.pool"):
        pools.close_all()
    if _mark not in session.config.stash:
        return
    left = leftovers.end(leftovers.find_leftovers(session.config.stash[_mark]))
    if left:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line("\nThe tests left processes behind, which are ended now:\n" + "\n".join(left), red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@atexit.register
def _hide_lists() -> None:
    """When a process ends, Triton's bindings list all that they have, on hundreds of lines; nobody else writes any more."""
    if "triton" in sys.modules:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


@pytest.fixture
def cora() -> Path:
    """The folder of Cora in OGB's raw layout."""
    folder = SHARED / "data" / "cora"
    if not folder.is_dir():
        pytest.skip("the Cora files lie beside the development checkout only")
    return folder


@pytest.fixture
def minesweeper() -> Path:
    """The file of that name of the heterophilous benchmark."""
    path = SHARED / "data" / "minesweeper" / "minesweeper.npz"
    if not path.is_file():
        pytest.skip("minesweeper.npz lies beside the development checkout only")
    return path
