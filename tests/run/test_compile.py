"""All that workers run is compiled before they start: what a worker compiles costs time, and 60 MB of its peak."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from sargnn.bf16 import ROW_DTYPES
from sargnn.run.env import PRECISION
from tests.processes import ROOT

CODE = """
import dataclasses, json, sys
from numba.core.registry import CPUDispatcher
from sargnn.run.env import warm_up
from sargnn.comm.group import Group
from tests.parity import cases

warm_up()

def compiled():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("sargnn.") and not name.startswith(("sargnn.sources.", "sargnn.graph.", "sargnn.partition.")):
            for key, value in vars(module).items():
                if isinstance(value, CPUDispatcher) and value.__module__ == name:
                    found[f"{name}.{key}"] = len(value.signatures)
    return found

before = compiled()
for model, changes in (("sage", {}), ("sage", {"aggregator": "max"}), ("gcn", {}), ("gat", {}), ("gatv2", {}), ("rgcn", {}),
                       ("rgcn", {"order": "aggregate_first"}), ("gin", {}), ("appnp", {}), ("sage", {"norm": "layer"})):
    config = cases.run_config(cases.model_config(model, **changes), precision=sys.argv[1], epochs=1)
    cases.trainer_of(Group.single(), config, cases.graph_for(model)).run()
after = compiled()
print(json.dumps({name: [before.get(name), number] for name, number in after.items() if number != before.get(name, 0)}))
"""


@pytest.mark.parametrize(
    "precision", [one if one == "fp32" else pytest.param(one, marks=pytest.mark.long) for one in ROW_DTYPES]
)
def test_training_compiles_nothing(precision: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), PRECISION: precision}
    done = subprocess.run([sys.executable, "-c", CODE, precision], env=env, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {}
