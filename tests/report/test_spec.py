"""Figures' files: every one can be composed, says what it is, and varies what it says; mistakes in them are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sargnn.cli.compose import compose_verb
from sargnn.cli.conf import built_in_folder
from sargnn.config.run import parse
from sargnn.errors import ConfigError
from sargnn.report.study import FigureSpec, cells_of, read_spec
from tests.parity.covering import only
from tests.report.specs import spec_of

FOLDER = built_in_folder().built_in / "figure"
NAMES = sorted(path.stem for path in FOLDER.glob("[!_]*.yaml"))
ASKED = [
    *(f"sar.fig{n}" for n in range(2, 10)), "sar.table1", "betty.fig2", "betty.fig4", *(f"betty.fig{n}" for n in range(10, 17)),
    *(f"betty.table{n}" for n in range(5, 8)), "granndis.fig4", *(f"granndis.fig{n}" for n in range(8, 13)), "granndis.fig17",
]  # fmt: skip


def test_every_figure_that_is_asked_for_is_there() -> None:
    assert set(ASKED) == set(NAMES)


@pytest.mark.parametrize("name", only(NAMES[::4], NAMES))
def test_its_runs_can_be_composed(name: str) -> None:
    spec = read_spec(FOLDER / f"{name}.yaml", FigureSpec)
    seen: set[str] = set()
    for point in (one.point for one in cells_of(spec)):
        if not seen.issuperset(point):  # every override once and more
            seen.update(point)
            parse(compose_verb("train", point))
    assert spec.paper.split(",")[0] in ("SAR", "Betty", "GraNNDis") and spec.paper.split()[-1] in name
    assert spec.differs.endswith(".") and len(spec.differs) > 40 and spec.shows.endswith(".") and len(spec.shows) < 110
    for panel in spec.panels:
        assert not panel.published.values or panel.published.about


def test_a_run_for_each_group_x_and_series(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    cells = cells_of(spec)
    assert [(one.group, one.x, one.series) for one in cells[:4]] == [
        ("one", "1", "a"), ("one", "1", "b"), ("one", "2", "a"), ("one", "2", "b"),
    ]  # fmt: skip
    assert len(cells) == 12
    assert cells[-1].point == ("world=4", "model=sage", "model.hidden=8", "model.num_layers=2", "mode=no_remat")
    scaled = cells_of(spec, ["world=128", "model.hidden=16", "dataset.scale=0.5"])
    assert [one.x for one in scaled[:6:2]] == ["32", "64", "128"]
    assert scaled[0].point == ("world=32", "model=sage", "model.hidden=16", "mode=sar", "dataset.scale=0.5")
    assert [one.x for one in cells_of(spec, ["world=1"])] == ["1"] * 4, "each number of workers once"


def test_the_label_of_x_stands_in_overrides(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ("worlds: [0.25, 0.5, 1], paper: [p, q, r]", "values: {'2': [], '3': []}"),
                             ("a: [mode=sar]", "a: ['batches.count={x}']"), ("1, null, 3", "1, null"))  # fmt: skip
    assert cells_of(spec)[0].point[-1] == "batches.count=2" and cells_of(spec)[2].point[-1] == "batches.count=3"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([("title: A title\n", "")], "title"),
        ([("kind: bars", "kind: pie")], "kind"),
        ([("epoch_time", "epoch_tim")], "epoch_time"),
        ([("panels: [", "panels: [{value: sent, relative_to: c}, ")], "relative_to"),
        ([("panels: [{value: epoch_time, published: {values: {one: {a: [1, null, 3]}}}}]", "panels: []")], "at least one"),
        ([("1, null, 3", "1, 3")], "one for each"),
        ([("one: {a:", "three: {a:")], "one for each"),
        ([("paper: [p, q, r]", "paper: [p, q]")], "x.paper"),
        ([("worlds: [0.25, 0.5, 1]", "values: {}")], "one of 'values'"),
        ([("worlds: [0.25, 0.5, 1], paper: [p, q, r]", "of_groups: {one: {a: []}}")], "of_groups"),
        ([("minutes: 1", "minutes: 0")], "minutes"),
        ([("differs", "difers")], "differs"),
        ([("title: A title", "title: [")], "cannot be read"),
    ],
)  # fmt: skip
def test_mistakes_are_named(changes: list[tuple[str, str]], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("own.yaml")) as error:
        spec_of(tmp_path, *changes)
    assert said in str(error.value)


@pytest.mark.parametrize("word", ["mode=sar", "world=0", "world=many", "model.num_layers=3"])
def test_what_a_figure_varies_cannot_be_set(word: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=word):
        cells_of(spec_of(tmp_path), [word])


def test_a_figure_like_another(tmp_path: Path) -> None:
    """Its keys take the place of the other's, its settings stand behind them, and null removes one."""
    other = spec_of(tmp_path)
    own = tmp_path / "like.yaml"
    own.write_text("like: own\ntitle: Another\nsettings: [model.hidden=16, seed=1]\ngroups: null\npanels: [{value: sent}]\n")
    spec = read_spec(own, FigureSpec)
    assert (spec.title, spec.paper, spec.series, spec.x) == ("Another", other.paper, other.series, other.x)
    assert list(spec.groups) == [""] and [panel.value for panel in spec.panels] == ["sent"]
    assert cells_of(spec)[0].point == ("world=1", "model=sage", "model.hidden=16", "seed=1", "mode=sar")


@pytest.mark.parametrize("other", ["nowhere", "like", "[a]"])
def test_a_figure_like_none(other: str, tmp_path: Path) -> None:
    (tmp_path / "like.yaml").write_text(f"like: {other}\ntitle: Another\n")
    with pytest.raises(ConfigError, match="'like' names another study"):
        read_spec(tmp_path / "like.yaml", FigureSpec)
