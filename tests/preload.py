"""What the fork server of the pools imports once.

No parallel region of PyTorch's may run here: GNU OpenMP does not survive a fork.
"""

import gc

from sargnn.interop.dgl import import_dgl
from sargnn.native import library
from tests.environment import skip_syncs
from tests.parity import cases  # noqa: F401

skip_syncs()
library()
import_dgl()  # a second for every worker whose kernel or baseline is DGL's
gc.collect()
gc.freeze()  # a collection in a worker would otherwise write to every shared page
