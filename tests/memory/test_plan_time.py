"""Epoch times in a plan: how they grow, that trials are kept, and that a run takes about what was said."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from sargnn.cli.compose import compose_verb
from sargnn.config.run import RunConfig, load, parse, save
from sargnn.errors import ConfigError, SargnnError
from sargnn.graph.dataset import write_dataset
from sargnn.memory import trials
from sargnn.memory.plan_parts import PartSizes
from sargnn.memory.plan_time import WAITING, Calibration, Load, Trial, epoch_time, load_of
from sargnn.memory.trials_outline import Outline
from sargnn.profile import AGGREGATION, ALL_REDUCE, EVALUATION, EXCHANGE_WAIT, LINEAR, OPTIMIZER, PACKING
from tests.in_process import sargnn_here
from tests.memory.plans import planned

OUTLINE = Outline((1.0,), (16,), ((0, 0, 8.0),), 0, 5, "classes", 0.3, 0.5, 0.3, 2.0, 4.0)
TYPED = Outline((0.6, 0.4), (0, 8), ((0, 1, 3.0), (1, 0, 3.0), (1, 1, 2.0)), 1, 5, "classes", 0.3, 0.5, 0.3, 2.0, 4.0)


def _made(rows: int, halo: int, *, fixed: float = 0.01) -> Trial:
    """A trial of a machine that takes 1 us a row, 0.1 us an edge and 2 us a halo row, and sends 1 GB in a second."""
    edges, sent = 10 * rows, 100.0 * halo
    seconds = {
        LINEAR: 1e-6 * rows, AGGREGATION: 1e-7 * edges + 2e-6 * halo, OPTIMIZER: fixed, PACKING: 1e-10 * sent,
        EXCHANGE_WAIT: 1e-9 * sent, ALL_REDUCE: fixed / 2,
    }  # fmt: skip
    work = {LINEAR: 50.0 * rows, AGGREGATION: 8.0 * edges}
    return Trial(Load(rows, (edges,), halo, halo, rows), sent, seconds, work, (1.0, 1.1))


CALIBRATION = Calibration(1, False, _made(1000, 100), _made(4000, 400), _made(4000, 3000))


def _time(loads: list[Load], sent: int | None = None, **more: float | None) -> float:
    settings = {"threads": 1, "cores": 4} | more
    return epoch_time(loads, sent, CALIBRATION, **settings).seconds  # type: ignore[arg-type]


def test_a_machine_that_is_known_is_foretold() -> None:
    """A size between the trials and one beyond, with another share of halo rows, and the work with it."""
    for rows, halo in ((2000, 900), (100_000, 150_000)):
        load = Load(rows, (10 * rows,), halo, halo, rows)
        found = epoch_time([load] * 2, int(2 * 100 * halo), CALIBRATION, threads=1, cores=2)
        assert found.seconds == pytest.approx(sum(_made(rows, halo).seconds.values()), rel=1e-9)
        assert found.seconds == pytest.approx(found.computing_s + found.exchanging_s)
        assert found.seconds == pytest.approx(sum(found.by_category.values()))
        assert found.low <= found.seconds <= found.high
        assert found.flops == pytest.approx(2 * 50 * rows) and found.bytes_moved == pytest.approx(2 * 80 * rows)


def test_twice_the_graph_takes_twice_the_time_but_for_what_is_fixed() -> None:
    once, twice = ([Load(n, (10 * n,), n, n, n)] * 2 for n in (50_000, 100_000))
    fixed = 0.01 + 0.005
    assert _time(twice) - fixed == pytest.approx(2 * (_time(once) - fixed))


def test_workers_share_cores_and_the_slowest_counts() -> None:
    small, large = Load(10_000, (100_000,), 0, 0, 0), Load(20_000, (200_000,), 0, 0, 0)
    assert _time([small, large]) == pytest.approx(_time([large]))
    assert _time([large] * 8) == pytest.approx(2 * _time([large]))
    assert _time([large] * 4, cores=4) < _time([large] * 4, cores=1)
    uneven = _time([small, small, large], cores=2)  # all at two thirds of their speed, then the large one alone
    assert uneven == pytest.approx(1.5 * _time([small]) + _time([large]) - _time([small]))
    assert _time([large], threads=2) < _time([large])


def test_linear_maps_of_rows_of_others_count() -> None:
    """Where the trial with more of these rows multiplies more."""
    made = []
    for rows, halo in ((1000, 100), (4000, 400), (4000, 3000)):
        trial = _made(rows, halo)
        trial.seconds[LINEAR], trial.work[LINEAR] = 1e-6 * (rows + 2 * halo), 50.0 * (rows + 2 * halo)
        made.append(trial)
    found = epoch_time([Load(9000, (90_000,), 8000, 8000, 0)], 0, Calibration(1, True, *made), threads=1, cores=1)
    assert found.by_category[LINEAR] == pytest.approx(1e-6 * 25_000) and found.flops == pytest.approx(50 * 25_000)


def test_a_slow_network_takes_longer() -> None:
    loads = [Load(10_000, (100_000,), 5000, 5000, 0)] * 4
    one, fast, slow = (_time(loads, 10**9, machines=n, network_bytes_s=speed) for n, speed in ((1, None), (2, 1e9), (2, 1e8)))
    leaves = 10**9 * 2 / 3 / 2  # two of three others are on the other machine, which receives half of all
    assert slow - fast == pytest.approx(leaves / 1e8 - leaves / 1e9)
    assert fast > leaves / 1e9 and one < fast
    assert _time(loads, 2 * 10**9) > _time(loads, 10**9)


def test_bytes_that_are_not_known_are_those_of_a_halo_row() -> None:
    loads = [Load(10_000, (100_000,), 5000, 5000, 0)] * 2
    assert _time(loads) == pytest.approx(_time(loads, 2 * 5000 * 100))


def test_what_falls_out_of_caches_is_not_foretold_as_if_it_stayed() -> None:
    fast, slow = _made(1000, 0, fixed=0.0), _made(4000, 0, fixed=0.0)
    slow.seconds[LINEAR] *= 3
    loads = [Load(40_000, (400_000,), 0, 0, 0)]
    found = epoch_time(loads, 0, Calibration(1, False, fast, slow), threads=1, cores=1)
    assert found.by_category[LINEAR] == pytest.approx(10 * slow.seconds[LINEAR])


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 workers"):
        _time([])
    with pytest.raises(ConfigError, match="network -1"):
        _time([Load(1, (1,), 0, 0, 0)], network_bytes_s=-1.0)


def test_loads_count_loops() -> None:
    part = PartSizes((3, 4), (10, 20), 5, 6, 2, 4, 8)
    assert load_of(part, loops=False) == Load(7, (10, 20), 5, 6, 2, 8)
    assert load_of(part, loops=True) == Load(7, (17, 20), 5, 6, 2, 8)


def test_shards_are_priced_by_edges_from_others() -> None:
    """Of a machine that takes 2 us for each such edge; where they are not counted, as many for each halo row as in a trial."""
    made = []
    for rows, crossing in ((1000, 200), (4000, 800), (4000, 6000)):
        trial = _made(rows, 0)
        trial.seconds[AGGREGATION] = 1e-6 * rows + 2e-6 * crossing
        made.append(dataclasses.replace(trial, load=dataclasses.replace(trial.load, halo=1000, crossing=crossing)))
    known = Calibration(1, True, *made)
    for one, crossing in ((Load(9000, (90_000,), 5, 5, 0, 7000), 7000), (Load(9000, (90_000,), 500, 500, 0), 3000)):
        found = epoch_time([one], 0, known, threads=1, cores=1)
        assert found.by_category[AGGREGATION] == pytest.approx(1e-6 * 9000 + 2e-6 * crossing)


@pytest.mark.parametrize("outline", [OUTLINE, TYPED], ids=["plain", "typed"])
def test_a_drawn_graph_is_as_its_outline_says(outline: Outline, tmp_path: Path) -> None:
    dataset, part = outline.draw(20_000, 2)
    near, _ = outline.draw(20_000, 2, crossing=0.05)
    write_dataset(tmp_path / "graph", dataset, {"generator": "test"})  # which checks it
    found = Outline.of(dataset)
    for name in ("shares", "widths", "relations", "labelled", "classes", "task", "trained", "weighted"):
        assert getattr(found, name) == getattr(outline, name), name
    farther, _ = dataclasses.replace(outline, far=0.9).draw(20_000, 2)
    assert found.far + 0.2 < Outline.of(farther).far and abs(found.inside - outline.inside) <= 0.15
    assert abs(found.skew - outline.skew) <= 1.0
    assert np.bincount(part).tolist() == pytest.approx([10_000, 10_000], rel=0.02)
    crossed = [
        (part[one.indices] != np.repeat(part, np.diff(one.indptr))).mean() for one in (dataset, near)
    ]  # fmt: skip
    assert crossed[0] == pytest.approx(outline.far / 2, rel=0.1) and crossed[1] < crossed[0] / 10
    again, _ = outline.draw(20_000, 2)
    assert np.array_equal(again.indices, dataset.indices)


def _config(*words: str) -> RunConfig:
    return parse(compose_verb("train", ["dataset=synthetic", "tracking=none", *words]))


def test_trials_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What decides the speed decides which trials serve; a damaged file is as none."""
    made: list[tuple[str, int, int]] = []

    def measure(config: RunConfig, outline: Outline, world: int, threads: int) -> Calibration:
        made.append((config.mode.name, world, threads))
        return dataclasses.replace(CALIBRATION, threads=threads)

    monkeypatch.setattr(trials, "_measure_rates", measure)
    monkeypatch.setattr(trials, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(trials, "usable_cores", lambda: 4)
    first = trials.measured_rates(_config("world=4", "threads=1"), OUTLINE)
    assert first == dataclasses.replace(CALIBRATION, threads=2)
    same = ("epochs=3", "seed=4", "threads=1", "world=8", "dataset.num_nodes=50", "run_dir=here", "memory_budget=6GB")
    assert trials.measured_rates(_config(*same), OUTLINE) == first
    assert made == [("sar", 2, 2)]
    others = ("world=2", "threads=1"), ("world=4", "mode=one_shot"), ("world=4", "model.hidden=32"), ("world=1",)
    for number, words in enumerate(others, 2):
        trials.measured_rates(_config(*words), OUTLINE)
        assert len(made) == number, words
    assert made[1:] == [("sar", 2, 1), ("one_shot", 2, 2), ("sar", 2, 2), ("sar", 1, 4)]
    trials.measured_rates(_config("world=4", "threads=1"), dataclasses.replace(OUTLINE, far=0.9))
    assert len(made) == 6
    (tmp_path / "rates.json").write_text("{")
    trials.measured_rates(_config("world=4", "threads=1"), OUTLINE)
    assert len(made) == 7
    content = json.loads((tmp_path / "rates.json").read_text())
    assert [Calibration.from_json(one) for one in content.values()] == [first]


def test_outlines_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By content; those of a dataset that is in no store are not."""
    monkeypatch.setattr(trials, "cache_dir", lambda: tmp_path)
    dataset, _ = TYPED.draw(3000, 2)
    stored = dataclasses.replace(dataset, content_hash="0123")
    found = trials.outline_of(dataset)
    assert not (tmp_path / "outlines.json").exists()
    assert trials.outline_of(stored) == found
    monkeypatch.setattr(Outline, "of", lambda dataset: pytest.fail("counted again"))
    assert trials.outline_of(stored) == found


def test_trials_have_the_settings_of_the_run(tmp_path: Path) -> None:
    """But for what would make them longer, or needs the run's own graph."""
    dataset, part = OUTLINE.draw(2000, 2)
    write_dataset(tmp_path / "graph", dataset, {"generator": "test"})
    np.save(tmp_path / "part.npy", part)
    words = (
        "model=gat",
        "model.hidden=24",
        "precision=bf16",
        "mode=no_remat",
        "memory_budget=6GB",
        "smooth=cs",
        "world=6",
        "mfg=true",
    )
    config = _config(*words, "servers=3", "early_stopping=4", "batches.count=auto", "labels=masked")
    save(trials._trial_config(config, tmp_path, 3, 2, 1), tmp_path / "config.yaml")
    trial = load(tmp_path / "config.yaml")
    assert (trial.model, trial.precision, trial.mode, trial.labels) == (
        config.model, config.precision, config.mode, config.labels
    )  # fmt: skip
    assert trial.mfg and trial.world == 2 and trial.batches.count == 1 and trial.smooth.name == "none"
    assert trial.add_self_loops == config.add_self_loops


def test_a_trial_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trials, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(trials, "_FEWEST_ROWS", 2000)
    monkeypatch.setattr(trials, "_MOST_ROWS", 2000)
    (tmp_path / "no_room.py").write_text("raise SystemExit('no room for a trial')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(trials, "_TRIAL", "no_room")
    with pytest.raises(SargnnError, match="no room for a trial"):
        trials.measured_rates(_config("world=1"), OUTLINE)
    assert not (tmp_path / "rates.json").exists()


@pytest.mark.long
def test_a_run_takes_about_what_was_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Computing, within a factor of two; other programs make its epochs longer, not what it computes for."""
    words = ["dataset=products_like", "dataset.scale=0.01", "model=sage", "mode=sar", "world=2", "threads=1"]
    words += ["tracking=none", f"store_dir={tmp_path}/stores"]
    done = sargnn_here(tmp_path, "train", *words, "epochs=4", "eval_every=10", "profile=true", "run_dir=run")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    config, dataset, cut = planned(words)
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setattr(trials, "cache_dir", lambda: kept)
    monkeypatch.setattr(trials, "usable_cores", lambda: 2)
    monkeypatch.setattr(trials, "_MOST_ROWS", 6000)
    monkeypatch.setattr(trials, "_FEWEST_ROWS", 6000)
    monkeypatch.setattr(trials, "_EPOCHS", 4)
    found = trials.predict(config, trials.outline_of(dataset), cut.parts, summary["comm_bytes_per_epoch"])
    measured = summary["profile_cpu_s"]
    computed = sum(max(ranks) for name, ranks in measured.items() if name not in (*WAITING, EVALUATION))
    assert computed / 2 < found.computing_s < 2 * computed
    assert found.computing_s < found.seconds <= found.high and found.exchanging_s > 0
    assert found.flops == pytest.approx(sum(summary["profile_work"][LINEAR]), rel=0.05)
    assert found.bytes_moved == pytest.approx(
        sum(sum(ranks) for name, ranks in summary["profile_work"].items() if name != LINEAR), rel=0.25
    )
