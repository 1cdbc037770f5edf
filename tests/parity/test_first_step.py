"""First-step outputs and every gradient of (model, mode, kernel, partitioner, world) against the dense oracle."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from sargnn.backends import KERNELS
from sargnn.comm.group import Group
from sargnn.config.groups import LabelsConfig
from sargnn.engine.modes import MODES
from sargnn.engine.reducers import REDUCERS
from sargnn.errors import KernelError
from sargnn.partition import PARTITIONERS
from sargnn.resolve import resolve
from tests.graphs import assign
from tests.parity import cases
from tests.parity.cases import PAIRS
from tests.parity.checks import GRAPHS, check
from tests.parity.covering import Axis, first_of, spread
from tests.pool import pool

GRAPH = GRAPHS["homogeneous"]


def refuses(mode: str, kernel: str) -> bool:
    """Whether a kernel has nothing for a mode."""
    return cases.MODE_CASES[mode].plain_autograd and not cases.KERNEL_CASES[kernel].plain_autograd


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "wide": {"hidden": 17, "num_layers": 2, "residual": True},
    "input_dropout": {"input_dropout": 0.3, "residual": True, "activation": "elu"},
    "no_norm": {"norm": "none", "num_layers": 2},
    "layer_norm": {"norm": "layer", "activation": "elu"},
    "one_layer": {"num_layers": 1},
}


PLACES: list[list[Any]] = [[*PARTITIONERS, "empty", "apart"], Axis([1, 2, 4], [4])]


def meetings() -> list[tuple[str, str, str]]:
    """Models, modes and kernels: every two meet."""
    kernels = {mode: [kernel for one, kernel in PAIRS if one == mode] for mode in MODES}
    return [
        (name, mode, own[(number + place) % len(own)])
        for number, name in enumerate(cases.OWN_FOLDS)
        for place, (mode, own) in enumerate(kernels.items())
    ]


@pytest.mark.parametrize(
    ("name", "mode", "kernel", "partitioner", "world"),
    first_of(
        [*spread(meetings(), *PLACES), *spread(list(cases.LIKE_OTHERS), PAIRS, *PLACES)],
        cases.spread_models(list(PAIRS), *PLACES, strength=2),
    ),
)
def test_every_pair(name: str, mode: str, kernel: str, partitioner: str, world: int) -> None:
    check(cases.model_config(name), mode=mode, kernel=kernel, partitioner=partitioner, world=world)


@pytest.mark.parametrize(("reducer", "mode", "kernel"), spread(list(REDUCERS), PAIRS))
def test_every_reducer(reducer: str, mode: str, kernel: str) -> None:
    """The model of its case folds with it, and is right."""
    name, changes = cases.REDUCER_CASES[reducer]
    model = cases.model_config(name, **changes)
    config = cases.run_config(model, mode=mode, kernel=kernel)
    trainer = cases.trainer_of(Group.single(), config, GRAPHS[name])
    used = {type(one) for _, one in cases.edge_layers(trainer)}
    assert resolve("reducer", REDUCERS, reducer) in used
    check(model, mode=mode, kernel=kernel, world=2 if mode in cases.WHOLE.get(reducer, MODES) else 1)


@pytest.mark.parametrize(
    ("name", "mode", "kernel", "world"),
    spread([name for name in cases.WRITTEN_MODELS if name not in cases.NAMES], PAIRS, [1, 4]),
)
def test_models_that_learn_nothing_from_edges(name: str, mode: str, kernel: str, world: int) -> None:
    check(cases.model_config(name), mode=mode, kernel=kernel, partitioner="empty", world=world)


@pytest.mark.parametrize(("name", "mode", "kernel", "variant"), cases.spread_models(PAIRS, list(VARIANTS)))
def test_model_variants(name: str, mode: str, kernel: str, variant: str) -> None:
    changes = cases.known(name, **VARIANTS[variant])
    if name == "resgcn":  # whose blocks are added to their input always
        changes.pop("residual", None)
    check(cases.model_config(name, **changes), mode=mode, kernel=kernel, world=4)


ATTENTION: dict[str, dict[str, Any]] = {
    "residual": {"linear_residual": True},
    "edges": {"edge_dropout": 0.4},
    "all": {"linear_residual": True, "edge_dropout": 0.6, "attn_dst": False, "symmetric_norm": True, "input_dropout": 0.2},
}


@pytest.mark.parametrize(
    ("variant", "v2", "mode", "kernel", "mfg"), spread(list(ATTENTION), [False, True], PAIRS, [False, True])
)
def test_options_of_attention(variant: str, v2: bool, mode: str, kernel: str, mfg: bool) -> None:
    changes = dict(ATTENTION[variant], v2=v2)
    if v2:
        changes = {name: value for name, value in changes.items() if name not in ("attn_dst", "symmetric_norm")}
    check(cases.model_config("gat", **changes), mode=mode, kernel=kernel, world=4, mfg=mfg)


@pytest.mark.parametrize(("name", "mode", "kernel"), cases.spread_models(PAIRS))
def test_fp32(name: str, mode: str, kernel: str) -> None:
    check(cases.model_config(name), mode=mode, kernel=kernel, world=4, precision="fp32")


@pytest.mark.parametrize("mode", MODES)
def test_sum_aggregator(mode: str) -> None:
    check(cases.model_config("sage", aggregator="sum"), mode=mode, world=4)


@pytest.mark.parametrize(
    ("mode", "precision", "world", "partitioner", "changes"),
    spread(list(MODES), ["fp64", "fp32"], [1, 4], ["metis", "empty"], [{}, {"input_dropout": 0.3, "num_layers": 2}]),
)
def test_pool_aggregator(mode: str, precision: str, world: int, partitioner: str, changes: dict[str, Any]) -> None:
    model = cases.model_config("sage", aggregator="pool", **changes)
    check(model, mode=mode, precision=precision, world=world, partitioner=partitioner, mfg="num_layers" in changes)


@pytest.mark.parametrize(
    ("mode", "precision", "world", "partitioner", "mfg", "labels"),
    spread(
        list(cases.WHOLE["lstm"]), ["fp64", "fp32"], [1, 4], ["metis", "apart", "empty"], [False, True],
        [LabelsConfig(), LabelsConfig(name="masked", reuse=1)],
    ),
)  # fmt: skip
def test_lstm_aggregator(
    mode: str, precision: str, world: int, partitioner: str, mfg: bool, labels: LabelsConfig
) -> None:  # fmt: skip
    """Isolated rows give zeros; where labels are fed back, that pass has the order of evaluation."""
    model = cases.model_config("sage", aggregator="lstm", input_dropout=0.3 if mfg else 0.0)
    check(model, mode=mode, precision=precision, world=world, partitioner=partitioner, mfg=mfg, labels=labels)


@pytest.mark.parametrize("mode", ["sar", "no_remat"])
def test_lstm_aggregator_of_one_worker(mode: str) -> None:
    check(cases.model_config("sage", aggregator="lstm"), mode=mode, mfg=mode == "sar")


GINS: list[dict[str, Any]] = [
    {"learn_eps": False, "mlp_layers": 1},
    {"learn_eps": False, "mlp_layers": 3, "norm": "layer"},
    {"mlp_layers": 3, "norm": "none", "residual": True},
    {"mlp_layers": 1, "input_dropout": 0.3, "hidden": 20},
]


@pytest.mark.parametrize(("number", "mode", "mfg"), spread(range(len(GINS)), list(MODES), [False, True]))
def test_gin_variants(number: int, mode: str, mfg: bool) -> None:
    """eps learned or not, perceptrons of one to three maps, the first before the sum or behind it."""
    check(cases.model_config("gin", **GINS[number]), mode=mode, world=4, mfg=mfg)


@pytest.mark.parametrize(
    ("mode", "kernel", "precision", "world", "partitioner"),
    spread(PAIRS, ["fp64", "fp32"], [1, 4], ["metis", "empty", "apart"]),
)
def test_max_aggregator(mode: str, kernel: str, precision: str, world: int, partitioner: str) -> None:
    """Dropped rows are zeros, so maxima tie; input dropout makes the first layer's errors travel too."""
    model = cases.model_config("sage", aggregator="max", input_dropout=0.3)
    check(model, mode=mode, kernel=kernel, precision=precision, world=world, partitioner=partitioner)


@pytest.mark.parametrize(("mode", "kernel"), [pair for pair in product(MODES, KERNELS) if refuses(*pair)])
def test_a_kernel_without_operators_for_autograd_is_refused_where_a_baseline_runs(mode: str, kernel: str) -> None:
    with pytest.raises(KernelError, match="one_shot"):
        cases.step(Group.single(), cases.run_config(cases.model_config("sage"), mode=mode, kernel=kernel), GRAPH)


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_prefetch_depth_changes_nothing(depth: int) -> None:
    check(cases.model_config("sage"), world=4, prefetch_depth=depth)


@pytest.mark.parametrize(("aggregator", "rows", "depth"), spread(["mean", "max"], [1, 7, 30], [0, 1, 3]))
def test_messages_in_pieces_change_nothing(aggregator: str, rows: int, depth: int) -> None:
    model = cases.model_config("sage", aggregator=aggregator, input_dropout=0.3)
    check(model, world=4, partitioner="metis", message_rows=rows, prefetch_depth=depth)


@pytest.mark.parametrize(
    ("name", "mode", "rows", "depth"), spread(["gat", "gatv2", "rgcn"], ["sar", "no_remat"], [1, 7, 30], [0, 1, 3])
)
def test_case_two_in_pieces_changes_nothing(name: str, mode: str, rows: int, depth: int) -> None:
    """The running maximum changes from piece to piece, and sar fetches the pieces again in backward."""
    model = cases.model_config(name)
    check(model, mode=mode, world=4, partitioner="metis", message_rows=rows, prefetch_depth=depth)


@pytest.mark.parametrize(
    ("partitioner", "depth", "rows", "mode", "name"),
    spread(["metis", "apart"], [0, 1, 2], [None, 10], ["sar", "no_remat"], ["sage", "gat", "rgcn"]),
)
def test_buffers_never_exceed_the_plan(partitioner: str, depth: int, rows: int | None, mode: str, name: str) -> None:
    config = cases.run_config(
        cases.model_config(name), mode=mode, world=4, partitioner=partitioner, prefetch_depth=depth, message_rows=rows
    )
    ranks = pool(4)(cases.step, config, GRAPHS[name])
    for answer in ranks:
        assert answer["held_bytes"] <= answer["planned_bytes"]
    assert any(answer["held_bytes"] > 0 for answer in ranks)


def test_the_forced_partitions_are_what_they_claim() -> None:
    empty = assign(GRAPH, "empty", 4)
    assert (empty != 3).all()
    apart = pool(4)(cases.step, cases.run_config(cases.model_config("sage"), partitioner="apart", world=4), GRAPH)
    assert apart[3]["halo_rows"] == 0 and len(apart[3]["ids"]) > 0


@pytest.mark.parametrize(("name", "mode", "kernel", "world"), cases.spread_models(PAIRS, [1, 2, 4]))
def test_bytes_equal_the_plan(name: str, mode: str, kernel: str, world: int) -> None:
    """Of rows; with partial results: ``test_partials.py``."""
    config = cases.run_config(cases.model_config(name), mode=mode, kernel=kernel, world=world, aggregate="post")
    ranks = pool(world)(cases.step, config, GRAPHS[name])
    for answer in ranks:
        assert answer["sent_bytes"] == answer["predicted_bytes"]
    halo = sum(answer["halo_rows"] for answer in ranks)
    if name == "rgat":
        return  # each relation reads rows of its own
    if name in ("gat", "gatv2"):
        # Rows and scores of 3, 3 and 2 heads of 5; forward and errors backward, in sar fetched again in between.
        width = 2 * 3 * 5 + 2 * 5 + (2 * 3 + 2 if name == "gat" else 0)
        expected_bytes = (3 if cases.MODE_CASES[mode].fetches_again else 2) * width
    elif name == "rgcn":
        # Raw rows and their errors, in sar fetched again; where the tables of sums are smaller than what it would keep, not.
        expected_bytes = sum((2 + again) * width for again, width in zip(ranks[0]["fetched_again"], (11, 10, 10), strict=True))
    elif name == "sgc":
        expected_bytes = 2 * 11  # constant rows, forward
    elif name == "appnp":
        expected_bytes = 3 * 2 * 5
    elif name in ("gcnii", "resgcn"):
        expected_bytes = 3 * 2 * 10
    else:
        # Forward rows and backward errors of layers 2 and 3, forward rows of layer 1. GIN's first map is as wide inside.
        expected_bytes = 11 + 2 * 10 + 2 * (10 if name == "gin" else 5)
    assert sum(a["sent_bytes"] for a in ranks) == halo * 8 * expected_bytes
