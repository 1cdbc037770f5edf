"""Plans by published sizes: papers100M beside the SAR paper's bars, and what is known of halo rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from sargnn.cli.compose import compose_verb
from sargnn.config.run import parse
from sargnn.memory import runtime
from sargnn.memory.plan_parts import PAPER_BARS, PUBLISHED, halo_of
from sargnn.memory.plan_run import plan_published
from sargnn.memory.plan_worker import Runtime
from tests.in_process import sargnn_here


def test_the_vanilla_bars_follow_from_the_halo() -> None:
    """GraphSage's: what the paper's training holds of others until backward, and ours does not, is missing to its bars."""
    for world in (32, 64, 128):
        config = parse(compose_verb("train", ["dataset=ogbn-papers100M", "mode=domain_parallel", f"world={world}"]))
        graph = PUBLISHED["ogbn-papers100M"].as_configured(config.dataset)
        halo = halo_of(graph, world)
        assert halo is not None
        bars = PAPER_BARS["sage"]
        distance = (bars["domain_parallel"][world] or 0) - (bars["sar"][world] or 0)
        assert halo * 2560 * graph.num_nodes / world == pytest.approx(distance * 1e9, rel=0.02)
        plan = plan_published(config, graph, halo, Runtime(0, 0))
        assert plan.largest.total / 1e9 + distance == pytest.approx(bars["domain_parallel"][world], rel=0.2)
        assert plan.together == world * plan.largest.total


def test_halo_between_what_is_known() -> None:
    graph = PUBLISHED["ogbn-papers100M"]
    assert halo_of(graph, 1) == 0 and halo_of(graph, 32) == 6.2 and halo_of(graph, 128) == 11.3
    assert 6.2 < (halo_of(graph, 48) or 0) < 8.1 and (halo_of(graph, 256) or 0) > 11.3
    assert halo_of(PUBLISHED["ogbn-arxiv"], 4) is None
    part = PUBLISHED["ogbn-arxiv"].part(4, 100.0)
    assert part.halo == 169_343 - part.rows[0]  # there are no more


def test_sizes_as_configured() -> None:
    """Inverse edges, as relations of their own in typed graphs; types dropped."""
    mag = parse(compose_verb("train", ["dataset=ogbn-mag", "model=rgcn"])).dataset
    graph = PUBLISHED["ogbn-mag"].as_configured(mag)
    assert len(graph.edges) == 8 and sum(count for *_, count in graph.edges) == 42_222_014
    assert graph.schema.num_nodes == 1_939_743 and graph.schema.typed
    plain = parse(compose_verb("train", ["dataset=ogbn-mag", "dataset.homogenize=true"])).dataset
    graph = PUBLISHED["ogbn-mag"].as_configured(plain)
    assert not graph.schema.typed and graph.edges == ((0, "edge", 0, 42_222_014),) and graph.nodes[0][2] == 128
    directed = parse(compose_verb("train", ["dataset=ogbn-products", "dataset.add_inverse_edges=false"])).dataset
    assert PUBLISHED["ogbn-products"].as_configured(directed).edges[0][3] == 61_859_140


@pytest.mark.long
def test_the_command_needs_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_measure_runtime", lambda config, **_: [300_000_000, 20_000_000])
    monkeypatch.setattr(runtime, "cache_dir", lambda: tmp_path)
    done = sargnn_here(tmp_path, "plan", "dataset=ogbn-papers100M", "model=sage", "picture=plan.png")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    rows = {tuple(line.split()[:2]): line for line in done.stdout.splitlines()}
    assert "150 GB" in rows["domain_parallel", "~32"] and "25 GB" in rows["sar", "~128"]
    assert "6.2 with 32, 8.1 with 64, 11.3 with 128 workers" in done.stderr
    assert (tmp_path / "plan.png").stat().st_size > 10_000 and not (tmp_path / "data").exists()
    mag = sargnn_here(tmp_path, "plan", "dataset=ogbn-mag", "model=rgcn", "worlds=[2,4]", "modes=sar", "halo=0.5")
    assert mag.returncode == 0 and "0.5 with 2" in mag.stderr, mag.stderr
    for more, says in (
        (["dataset=synthetic", "halo=1"], "ogbn-mag"),
        (["halo=-1"], "'halo'"), (["what=all"], "'what'"), (["picture=plan.txt"], "PNG or SVG"),
        (["dataset=ogbn-arxiv", "modes=sar", "worlds=2", "picture=/proc/none/plan.png"], "cannot be written"),
    ):  # fmt: skip
        wrong = sargnn_here(tmp_path, "plan", *more)
        assert wrong.returncode == 1 and says in wrong.stderr and "Traceback" not in wrong.stderr, wrong.stderr
