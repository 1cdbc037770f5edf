"""Which runs are averaged together, what they are called, and what is said to differ."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from sargnn.errors import ConfigError
from sargnn.report.charts import Series, scaling_lines
from sargnn.report.draw import coinciding, label_of, spread_out
from sargnn.report.groups import BY_KEY, best_scores, make_groups, over_seeds
from sargnn.report.runs import Run, differences, find_folders, read_runs
from tests.report.folders import write_run


def read(*folders: Path) -> list[Run]:
    runs, left_out = read_runs(folders)
    assert not left_out, left_out
    return runs


def changed(folder: Path, **settings: Any) -> Path:
    """The run in the folder with other settings; a dot is written as two underscores, None removes one."""
    path = folder / "config.yaml"
    mapping = yaml.safe_load(path.read_text())
    for key, value in settings.items():
        group, _, name = key.rpartition("__")
        place = mapping[group] if group else mapping
        place[name] = value
        if value is None:
            del place[name]
    path.write_text(yaml.safe_dump(mapping))
    return folder


def test_what_changes_no_figure_tells_no_runs_apart(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", 0)
    words = ["seed=1", "run_name=other", "store_dir=elsewhere", "profile=true", "tracking.experiment=mine"]
    words += ["checkpoint.every=3", "prepare.buffer=1GB", "comm.port=5000", "comm.max_restarts=2", "comm.timeout_s=7"]
    two = write_run(tmp_path / "two", 1, *words)
    (group,) = make_groups(read(one, two))
    assert group.seeds == [0, 1] and group.differs == {} and group.figures["epoch_time_s"] == over_seeds([1.0, 1.125])
    assert differences([*group.members]) == [{"seed": 0}, {"seed": 1}]


@pytest.mark.parametrize(
    ("summary", "shown"),
    [
        ({"git_sha": "f" * 40 + "-dirty"}, {"code": "fffffffff-dirty"}),
        ({"versions": {"python": "3.11", "torch": "2.3"}}, {"version of torch": "2.3"}),
        ({"cpu": "another"}, {"cpu": "another"}),
        ({"dataset_hash": "another"}, {"dataset_hash": "another"}),
    ],
)
def test_code_machine_and_content_tell_runs_apart(summary: dict[str, Any], shown: dict[str, Any], tmp_path: Path) -> None:
    groups = make_groups(read(write_run(tmp_path / "one", 0), write_run(tmp_path / "two", 1, "seed=1", **summary)))
    assert len(groups) == 2 and groups[1].differs == shown


@pytest.mark.parametrize(
    ("left_open", "chosen", "ran"),
    [
        ("kernel=auto", "kernel=fused", {"kernel": "fused"}),
        ("partitioner=auto", "partitioner=stream", {"partitioner": {"name": "stream", "balance": "both"}}),
        ("partitioner=auto", "partitioner=metis", {"partitioner": {"name": "metis", "balance": "nodes"}}),
        ("mode=auto", "mode=no_remat", {"mode": "no_remat"}),
        ("preload=auto", "preload=none", {"preload": {"chosen": "none"}}),
        ("servers=null", "servers=1", {"servers": 1}),
    ],
)
def test_what_ran_tells_runs_apart_not_who_chose_it(left_open: str, chosen: str, ran: dict[str, Any], tmp_path: Path) -> None:
    one, two = write_run(tmp_path / "one", 0, left_open, **ran), write_run(tmp_path / "two", 1, chosen, "seed=1", **ran)
    (group,) = make_groups(read(one, two))
    assert group.differs == {} and differences([*group.members]) == [{"seed": 0}, {"seed": 1}]


def test_a_choice_that_came_out_otherwise_tells_runs_apart(tmp_path: Path) -> None:
    ran: dict[str, Any] = {"partitioner": {"name": "kaminpar", "balance": "nodes"}, "kernel": "dgl"}
    runs = read(write_run(tmp_path / "one", 0), write_run(tmp_path / "two", 1, "partitioner=auto", **ran))
    assert differences(runs, seed=False)[1] == {"partitioner": "kaminpar", "kernel": "dgl"}


def test_versions_of_what_computes_nothing_do_not(tmp_path: Path) -> None:
    versions = {"python": "3.11", "torch": "2.2", "mlflow": "9", "hydra-core": "2"}
    assert len(make_groups(read(write_run(tmp_path / "a", 0), write_run(tmp_path / "b", 1, "seed=1", versions=versions)))) == 1


def test_the_same_seed_twice_is_no_mean(tmp_path: Path) -> None:
    """A run repeated is no second seed: its group has each seed once, and the repeats are one of their own."""
    seeds = [write_run(tmp_path / f"s{seed}", seed, f"seed={seed}") for seed in range(3)]
    again = [shutil.copytree(seeds[seed], tmp_path / f"again{seed}") for seed in (1, 0)]
    groups = make_groups(read(*seeds, *again))
    assert [[run.name for run in group.members] for group in groups] == [["s0", "s1", "s2"], ["again0", "again1"]]
    assert groups[1].differs == {"repeat": 2} and groups[0].differs == {}


def test_settings_of_an_option_differ_only_among_its_runs(tmp_path: Path) -> None:
    words = [["model=sage"], ["model=gat"], ["model=gat", "model.heads=2"], ["model=gat", "partitioner.seed=4", "seed=3"]]
    runs = read(*(write_run(tmp_path / str(number), number, *one) for number, one in enumerate(words)))
    heads = runs[1].settings["model.heads"]
    common = {"partitioner.seed": 0}  # its short name is that of the run's own seed
    assert differences(runs) == [
        {"seed": 0, **common, "model": "sage"}, {"seed": 0, **common, "model": "gat", "heads": heads},
        {"seed": 0, **common, "model": "gat", "heads": 2}, {"seed": 3, "partitioner.seed": 4, "model": "gat", "heads": heads},
    ]  # fmt: skip


def test_a_file_of_before_a_setting_existed_has_its_default(tmp_path: Path) -> None:
    one, two = write_run(tmp_path / "one", 0), write_run(tmp_path / "two", 1, "seed=1")
    changed(two, labels=None, mfg=None, smooth=None, early_stopping=None, comm__message_rows=None, optim__clip=None)
    assert len(make_groups(read(one, two))) == 1


def test_a_dataset_whose_file_is_gone_is_compared(tmp_path: Path) -> None:
    """Neither what makes the dataset nor what a model's settings are made of is imported."""
    run = write_run(tmp_path / "own", 0)
    changed(
        run, dataset={"name": "python", "target": "/gone/graph.py:make", "args": {"size": 3}}, model__target="/gone/net.py:Net"
    )
    (found,) = read(run)
    assert found.settings["dataset.args.size"] == 3 and found.settings["model.target"] == "/gone/net.py:Net"


def test_names_are_those_of_folders_and_all_different(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    folders = [write_run(tmp_path / "a" / "run", 0), write_run(tmp_path / "b" / "run", 1), write_run(tmp_path / "other", 2)]
    folders += [write_run(sweep / f"00{number}", number, f"seed={number}") for number in range(2)]
    sweep.joinpath("sweep.json").write_text(json.dumps({"labels": ["seed=0", "seed=1"]}))
    runs = read(*folders)
    assert [run.name for run in runs] == ["a/run", "b/run", "other", "seed=0", "seed=1"]
    assert [group.name for group in make_groups(runs[3:])] == ["sage-sar-w2"]


@pytest.mark.parametrize("content", ["[]", '{"labels": 3}', "[" * 100_000, '{"labels": ["a"]}'])
def test_a_damaged_list_of_a_sweeps_points_gives_no_label(content: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "001", 0)
    (tmp_path / "sweep.json").write_text(content)
    assert read(run)[0].name == "001"


def test_lines_of_threads_that_were_shared_out(tmp_path: Path) -> None:
    """Where nobody set threads they follow from the world; where somebody did, only equal ones are joined."""
    places = [(1, 4), (2, 2), (4, 1), (1, 1), (2, 1)]
    runs = [write_run(tmp_path / f"w{w}t{t}", w, f"world={w}", f"threads={t}", cores=4) for w, t in places]
    lines = [[group.name for group in line] for line in scaling_lines(make_groups(read(*runs)))]
    assert lines == [["w1t4", "w2t2", "w4t1"], ["w1t1", "w2t1", "w4t1"]]
    for folder in runs:
        path = folder / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"cores": None}))
    lines = [[group.name for group in line] for line in scaling_lines(make_groups(read(*runs)))]
    assert lines == [["w1t4"], ["w2t2"], ["w1t1", "w2t1", "w4t1"]]


def test_the_best_is_of_one_dataset_and_metric(tmp_path: Path) -> None:
    def scored(name: str, score: float, *words: str, **changed: Any) -> Path:
        return write_run(tmp_path / name, 0, *words, test_metric_at_best_val=score, **changed)

    errors = {"metric": "mse", "task": "regression"}
    runs = read(
        scored("a", 0.5), scored("b", 0.7, "model.hidden=8"), scored("c", 0.7, "model.hidden=9"),
        scored("d", 0.9, "dataset=products_like"), scored("e", 0.3, **errors), scored("f", 0.2, "model.hidden=8", **errors),
    )  # fmt: skip
    assert best_scores(runs, BY_KEY["test_score"]) == [False, True, True, False, False, True]


def test_words_name_runs_and_the_rest_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("good", "going-on", "broken", "failed")):
        write_run(tmp_path / "runs" / name, number)
    runs = tmp_path / "runs"
    (runs / "going-on" / "summary.json").unlink()
    (runs / "broken" / "config.yaml").write_text("[1, 2]")
    (runs / "failed" / "summary.json").write_text('{"status": "failed", "error": "why"}')
    (runs / "empty").mkdir()
    folders, out = find_folders([])
    assert [one.folder.name for one in out] == ["empty"]
    found, more = read_runs(folders)
    assert [run.name for run in found] == ["good"] and {one.folder.name for one in more} == {"going-on", "broken", "failed"}
    reasons = {one.folder.name: one.reason for one in more}
    assert reasons["going-on"] == "not over" and reasons["failed"] == "failed" and "config.yaml" in reasons["broken"]
    assert find_folders(["good", "runs/good", "go*", "runs/empty"])[0] == [Path("runs/good"), Path("runs/going-on")]
    with pytest.raises(ConfigError, match="no such run"):
        find_folders(["god"])


def test_labels_keep_their_order_and_do_not_overlap() -> None:
    placed = spread_out([5.0, 5.1, 0.0, 9.9], [1.0, 2.0, 1.0, 1.0], 0.0, 10.0)
    assert placed == pytest.approx([4.3, 5.8, 0.5, 9.5]) or placed[0] + 0.5 <= placed[1] - 1.0
    assert placed[2] == 0.5 and placed[3] == 9.5
    crowd = spread_out([1.0] * 12, [1.0] * 12, 0.0, 10.0)
    assert crowd == pytest.approx([0.5 + number for number in range(12)])  # no room: beyond the upper end


def test_curves_on_each_other_are_found_and_named_together() -> None:
    def curve(name: str, *ys: float) -> Series:
        return Series(name, [1.0, 2.0], list(ys), [0.0, 0.0], [name])

    every = [curve("sar", 4, 1), curve("other", 4, 2), curve("one_shot", 4, 1.0000001), curve("domain_parallel", 4, 1)]
    together = coinciding(every)
    assert [[one.name for one in same] for same in together] == [["sar", "one_shot", "domain_parallel"], ["other"]]
    assert label_of(together[0]) == "sar = one_shot = domain_parallel"
    assert "= 44 more" in label_of([curve(f"run {number}", 1, 1) for number in range(50)]).replace("\n", " ")
