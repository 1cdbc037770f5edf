"""Training modes: when remote rows are fetched, and what survives until the backward pass."""

MODES = {
    "sar": "sargnn.engine.modes.sar:Sar",
    "no_remat": "sargnn.engine.modes.sar:NoRemat",
    "one_shot": "sargnn.engine.modes.one_shot:OneShot",
    "domain_parallel": "sargnn.engine.modes.domain_parallel:DomainParallel",
}
