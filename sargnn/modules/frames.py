"""Fields of nodes or edges by name, as a layer sets and reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor

from sargnn.errors import ConfigError, nearest
from sargnn.modules.rows import Rows, is_shared, rows_of, tagged

_OF_DATA = frozenset("feat feats feature features attr x".split())
"""What fields of features are called in DGL's data sets."""
_OF_WEIGHTS = frozenset("w weight weights edge_weight edge_weights".split())


class MissingField(ConfigError, KeyError):
    """A field that is not there."""

    __str__ = ConfigError.__str__


class Frame(MutableMapping[str, Any]):
    """Fields of the same rows.

    Args:
        kind: what an error calls the rows, such as ``source nodes``.
        rows: what a tensor's rows are from now on. count: how many there are, as a call.
        place: where the user's code is, for an error.
        fixed: fields that are made when they are read first, such as original ids.
    """

    def __init__(
        self,
        kind: str,
        rows: Rows,
        count: Callable[[], int],
        place: Callable[[], str],
        fixed: Mapping[str, Callable[[], Any]] | None = None,
    ) -> None:
        self.kind, self.rows, self._count, self._place = kind, rows, count, place
        self._fixed = dict(fixed or {})
        self._fields: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._fields:
            if name in self._fixed:
                field = self._fixed[name]()
                return tagged(field, self.rows, shared=True) if isinstance(field, Tensor) else field
            raise MissingField(
                f"The {self.kind} have no field '{name}'.",
                given=self._place(),
                allowed=nearest(name, self._fields) or list(self._fields) or "none was set",
                hint=self._hint(name),
            )
        return self._fields[name]

    def fix(self, name: str, make: Callable[[], Any]) -> None:
        """A field that is made whenever it is read, until another is set."""
        self._fixed[name] = make

    def _hint(self, name: str) -> str | None:
        if name in _OF_DATA:
            return "features are what forward gets beside the graph"
        if self.rows.kind == "edges" and name in _OF_WEIGHTS:
            return (
                "the graph's weights are edata['w']"
                if "w" in self
                else "the run's graph has no edge weights (docs/OWN_DATA.md)"
            )
        return None

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            count = self._count()
            if not value.dim() or len(value) != int(count):
                raise ConfigError(
                    f"The field '{name}' has not one row for each of the {self.kind}.",
                    given=f"shape {tuple(value.shape)} for {int(count)}; {self._place()}",
                )
            if rows_of(value) is None:
                tagged(value, self.rows, shared=is_shared(value))
        elif not hasattr(value, "node"):
            raise ConfigError(
                f"The field '{name}' is no tensor.",
                given=f"a {type(value).__name__}; {self._place()}",
                allowed=f"a tensor with a row for each of the {self.kind}",
            )
        self._fields[name] = value

    def __repr__(self) -> str:
        return f"Frame({self.kind}: {', '.join(self._fields) or 'no fields'})"

    def __delitem__(self, name: str) -> None:
        self[name]
        self._fields.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._fields or name in self._fixed

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def copy(self) -> Frame:
        """The same fields in a frame of their own."""
        frame = Frame(self.kind, self.rows, self._count, self._place, self._fixed)
        frame._fields = dict(self._fields)
        return frame

    def saved(self) -> dict[str, Any]:
        """The fields as they are now, for ``restore``."""
        return dict(self._fields)

    def restore(self, fields: dict[str, Any]) -> None:
        """Set and remove fields until they are ``fields``."""
        self._fields = dict(fields)
