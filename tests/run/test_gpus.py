"""Which GPU a process gets, and what is said where there are too few."""

from __future__ import annotations

import pytest

from sargnn.errors import ConfigError
from sargnn.run.env import gpu_lines, local_device_index
from tests.configs import config


def test_processes_of_a_host_go_round_its_gpus() -> None:
    assert [local_device_index(process, 2, {}) for process in range(4)] == [0, 1, 0, 1]
    hosts = [local_device_index(process, 4, {"LOCAL_RANK": str(process % 4)}) for process in range(4, 8)]
    assert hosts == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("words", "gpus", "line"),
    [
        (["world=4"], 1, []),
        (["world=4", "device=cuda"], 4, []),
        (["world=4", "device=cuda"], 0, []),
        (["world=4", "device=cuda", "processes=1"], 1, []),
        (["world=4", "device=cuda"], 1, ["4 processes share 1 GPU: processes=1 "]),
        (["world=4", "device=cuda"], 3, ["4 processes share 3 GPUs: processes=2 "]),
    ],
)
def test_processes_that_share_gpus(words: list[str], gpus: int, line: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    found = gpu_lines(config(*words))
    assert len(found) == len(line) and all(map(str.startswith, found, line)), found


def test_what_nccl_does_not_go_with() -> None:
    assert config("comm.backend=nccl", "device=cuda", "processes=null").comm.backend == "nccl"
    with pytest.raises(ConfigError, match="from GPU to GPU"):
        config("comm.backend=nccl", "processes=null")
    with pytest.raises(ConfigError, match="each worker"):
        config("comm.backend=nccl", "device=cuda", "world=4", "processes=2")
