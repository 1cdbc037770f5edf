"""What the fork server of the pools imports once.

No parallel region of PyTorch's may run here: GNU OpenMP does not survive a fork.
"""

import gc

from sargnn.interop.dgl import import_dgl
from sargnn.native import library
from tests.parity import cases  # noqa: F401

library()
import_dgl()  # a second for every worker whose kernel or baseline is DGL's
gc.collect()
gc.freeze()  # a collection in a worker would otherwise write to every shared page
