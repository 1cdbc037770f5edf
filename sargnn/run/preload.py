"""What the fork server imports once, so that every worker starts with it and shares its memory.

A job's worker, which no fork server starts, imports it itself.

No parallel region of PyTorch's may run here: GNU OpenMP does not survive a fork.
"""

import gc

import sargnn.engine.reducers.max
import sargnn.engine.reducers.sum
import sargnn.models.gat
import sargnn.models.gcn
import sargnn.models.rgcn
import sargnn.models.sage  # noqa: F401
from sargnn.native import library

library()
gc.collect()
gc.freeze()  # a collection in a worker would otherwise write to every shared page
