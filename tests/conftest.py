"""Settings of all tests, and what is checked when they end."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from sargnn.interop import dgl_finder
from tests import leftovers
from tests.compile import compile_once, set_up_environment

pytest.register_assert_rewrite("tests.kernels", "tests.parity")  # a check that fails in a helper shows its values
set_up_environment()
dgl_finder.install()  # some tests import dgl as a user's file does
os.environ.setdefault("DGLBACKEND", "pytorch")

# A shell's background jobs and nohup ignore these, and so would all that the tests start. What is handled here instead, by
# nothing, is back at its default in every program that is started.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# Files that take long for the few tests they hold, so that no process begins one when the others are done.
_FIRST = (
    "tests/cli/test_readme.py",
    "tests/cli/test_verbs.py",
    "tests/docs/test_own_data.py",
    "tests/parity/test_first_step.py",
    "tests/launch/test_train.py",
    "tests/bench/test_table.py",
    "tests/parity/test_curves.py",
    "tests/engine/test_attention_memory.py",
    "tests/launch/test_meeting.py",
    "tests/bench/test_epoch.py",
    "tests/cli/test_signals.py",
    "tests/test_leftovers.py",
)

SHARED = Path(__file__).parent.parent.parent / "shared"
_mark = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Mark what this session starts, and compile the kernels; for workers of pytest-xdist their parent has done both."""
    if not hasattr(config, "workerinput"):
        config.stash[_mark] = leftovers.mark_session()
        compile_once()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, then those with the most tests; the order within a file stays."""
    size = Counter(item.nodeid.partition("::")[0] for item in items)

    def place(item: pytest.Item) -> tuple[int, int]:
        file = item.nodeid.partition("::")[0]
        return (_FIRST.index(file) if file in _FIRST else len(_FIRST)), -size[file]

    items.sort(key=place)


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


@pytest.fixture
def cora() -> Path:
    """The folder of Cora in OGB's raw layout."""
    folder = SHARED / "data" / "cora"
    if not folder.is_dir():
        pytest.skip("the Cora files lie beside the development checkout only")
    return folder
