"""Random mutations of valid command lines: every one is answered, none with a traceback.

The command line's own function is called; what would train, prepare or start a process is replaced, so that valid mutants end
there.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sargnn.cli import main as cli
from sargnn.report.bench import gpu  # noqa: F401  (with what it imports, before that is replaced)

VALID = [
    ["train", "model=gat", "mode=sar", "world=2", "epochs=3"],
    ["train", "model=sage", "model.hidden=16", "optim.lr=0.01", "kernel=fused", "precision=fp64"],
    ["train", "-m", "model=sage,gcn", "seed=1,2"],
    ["train", "dataset=products_like", "dataset.scale=0.01", "partitioner=random", "engine.cache_static=false"],
    ["train", "experiment=cora_gat", "dataset.root=somewhere", "comm.prefetch_depth=2"],
    ["train", "debug=tiny", "model.aggregator=max", "+model.dropout=0.5", "--cfg", "job"],
    ["prepare", "dataset=synthetic", "dataset.num_nodes=50"],
    ["check", "dataset=synthetic", "dataset.num_nodes=50", "json=true"],
    ["partition", "dataset.num_nodes=50", "world=2", "partitioner=range"],
    ["bench", "gpu", "widths=[8,16]", "precisions=[fp32]"],
    ["compare", "runs/a", "out=x", "--json", "baseline=b"],
    ["track", "runs/a"],
    ["clean", "what=all", "yes=false"],
    ["info", "store_dir=stores"],
    ["completion", "bash"],
]
ALPHABET = "abcdefghijklmnopqrstuvwxyz=.,-+~@/[](){}'\"\\$:*% 0123456789_\u00e9\n"


def mutate(words: list[str], rng: random.Random) -> list[str]:
    words = list(words)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(words))
        kind = rng.choice(["change", "insert", "delete", "swap", "repeat", "drop", "value", "nothing"])
        word = words[place]
        at = rng.randrange(len(word) + 1)
        if kind == "change" and word:
            at = min(at, len(word) - 1)
            words[place] = word[:at] + rng.choice(ALPHABET) + word[at + 1 :]
        elif kind == "insert":
            words[place] = word[:at] + rng.choice(ALPHABET) + word[at:]
        elif kind == "delete" and word:
            words[place] = word[: max(at - 1, 0)] + word[at:]
        elif kind == "swap":
            other = rng.randrange(len(words))
            words[place], words[other] = words[other], words[place]
        elif kind == "repeat":
            words.append(word)
        elif kind == "drop" and len(words) > 1:
            del words[place]
        elif kind == "value" and "=" in word:
            value = rng.choice(["nan", "-1", "0", "null", "true", "[]", "{}", "1e400", "a,b", "", "${x}", "'", "???"])
            words[place] = f"{word.partition('=')[0]}={value}"
    return words


class Reached(Exception):
    """A mutant is a valid command: what it would start."""


@pytest.mark.parametrize("seed", range(4))
def test_no_traceback(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def reached(*_: object, **__: object) -> None:
        raise Reached

    for target in (
        "sargnn.cli.train._train", "sargnn.cli.train.run_sweep", "sargnn.sources.prepare.prepare_dataset",
        "sargnn.report.bench.gpu.run", "subprocess.Popen",
    ):  # fmt: skip
        monkeypatch.setattr(target, reached)
    monkeypatch.chdir(tmp_path)
    rng = random.Random(seed)
    answered = 0
    for _ in range(60):
        words = mutate(rng.choice(VALID), rng)
        try:
            code = cli.main(words)
        except Reached:
            continue
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {words} raised {type(error).__name__}: {error}") from error
        out, err = capsys.readouterr()
        assert code in (0, 1), (seed, words)
        if code == 1:
            answered += 1
            assert err.startswith("sargnn: ") and len(err.splitlines()) <= 12, (seed, words, err)
    assert answered > 15  # it did meet mistakes
