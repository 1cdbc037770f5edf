from typing import Any

from sargnn.api.process import Callback as Callback
from sargnn.api.run import Run as Run
from sargnn.api.run import compare as compare
from sargnn.api.run import load as load
from sargnn.api.run import train as train
from sargnn.api.shard import GraphShard as GraphShard
from sargnn.api.shard import shard as shard
from sargnn.errors import SargnnError as SargnnError

dgl: Any
__version__: str
PUBLIC: dict[str, str]
