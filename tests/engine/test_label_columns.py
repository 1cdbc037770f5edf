"""Labels beside constant rows: their aggregate is never kept, whichever operators an engine has."""

from __future__ import annotations

import pytest

from sargnn.backends.memory import Pool
from sargnn.comm.group import Group
from sargnn.config.groups import LabelsConfig
from sargnn.engine.operators import StockOperators
from sargnn.engine.workspace import Workspace
from tests.graphs import nasty_graph
from tests.parity import cases


@pytest.mark.parametrize("name", ["sage", "gcn", "sgc"])
def test_labels_of_every_epoch_are_read_with_stock_operators(name: str) -> None:
    """As an engine off the CPU has them, where aggregates of constant rows are kept, too."""
    model = cases.model_config(name, **cases.known(name, input_dropout=0.0, residual=True))
    config = cases.run_config(model, world=1, epochs=3, labels=LabelsConfig("masked", 0.5, 0))
    losses = []
    for stock in (False, True):
        trainer = cases.trainer_of(Group.single(), config, nasty_graph(80))
        if stock:
            engine = trainer.engine
            engine.operators = StockOperators(engine.group, Workspace(Pool(enabled=False), engine.profile))
        losses.append(trainer.run().losses)
        assert trainer.engine.holds_constants
    assert losses[0] == pytest.approx(losses[1], rel=1e-8)
