"""A module of the user's: its settings, and what is known of it before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from sargnn.config.fields import AT_LEAST_ONE, brief
from sargnn.config.run import ModelSettings, RunConfig
from sargnn.errors import ConfigError, SargnnError
from sargnn.resolve import describe_source

if TYPE_CHECKING:
    from sargnn.models.base import Model
    from sargnn.models.inputs import GraphShape


@dataclass(frozen=True)
class Custom(ModelSettings):
    """A ``torch.nn.Module`` with ``forward(graph, x)``, built with ``args`` and, by their names, what the data decide.

    Attributes:
        target: ``FILE.py:CLASS`` or ``package.module:Class``; a function that returns a module does as well.
        args: its arguments, by name: numbers, texts, true and false, null, and lists and mappings of these.
        content: 16 hex digits of the target's file, which decides the losses; its path does not. null: as the file is now.
        embedding: of typed graphs: width of the learnable rows of node types without features, and of the map of features of
            another width; null: that of the features, or 256 where none has features or their widths differ.
    """

    args: dict[str, Any] = field(default_factory=dict)
    content: str | None = None
    embedding: int | None = field(default=None, metadata=AT_LEAST_ONE)

    reads_target: ClassVar[str] = "a torch.nn.Module"
    no_embeddings: ClassVar[str] = "A module of your own does not say which of its rows the last layer reads."

    def __post_init__(self) -> None:
        for name, value in self.args.items():
            _check_plain(value, f"model.args.{name}")
        if self.content is None and self.target is not None:
            object.__setattr__(self, "content", self.content_now())

    def content_now(self) -> str | None:
        """What ``content`` is of the file as it is now, or as it was when this process loaded it; None: it cannot be found.

        Raises:
            ConfigError: the file cannot be read.
        """
        try:
            return describe_source(str(self.target)).rpartition(" ")[2]
        except SargnnError:
            raise
        except Exception:  # to find a module its package is imported, whatever that does; loading it says what is wrong
            return None

    @property
    def title(self) -> str:
        return f"{self.name}-{self.target.rpartition(':')[2]}" if self.target else self.name

    @property
    def operations(self) -> tuple[str, ...]:
        return ("sum",)

    @property
    def no_weights(self) -> None:
        return None

    @property
    def draws_by_id(self) -> bool:
        return True

    @property
    def norms_over_rows(self) -> bool:
        return True

    @property
    def no_preload(self) -> str | None:
        return "What a module of your own asks about all rows counts each of them once, and servers that preload have copies."

    def check(self, run: RunConfig) -> None:
        if self.target is None:
            raise ConfigError("The setting 'model.target' must be given.", hint="add model.target=FILE.py:CLASS")
        if run.precision == "bf16":
            raise ConfigError(
                "A module of your own computes in fp32 or fp64: PyTorch multiplies no bf16 rows by its fp32 parameters.",
                given="model=custom, precision=bf16",
                hint="precision=mixed multiplies in bf16, comm.wire=bf16 halves what is sent",
            )

        if run.engine.keep_layers != "all":
            raise ConfigError(
                "A module of your own does not say where its layers end: all that its backward needs is kept.",
                given=f"model=custom, engine.keep_layers={run.engine.keep_layers}",
                allowed="engine.keep_layers=all",
                hint="batches.count=K needs less memory, too",
            )

    def check_target(self) -> None:
        from sargnn.models.user_module import find_module

        find_module(self)
        if self.content != self.content_now():
            raise ConfigError(
                "The file of 'model.target' has changed since the run was made.",
                given=self.target,
                hint="undo the change, or train anew, without model.content",
            )

    def build(self, shape: GraphShape) -> Model:
        from sargnn.models.layers.custom import build

        return build(self, shape)


def _check_plain(value: Any, key: str) -> None:
    """Refuse what cannot be written to a file and compared. Raises ``ConfigError``."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str):
                hint = f"{{'{name}': ...}}" if isinstance(name, int | float) else None
                raise ConfigError(f"'{key}' has a name that is no text.", given=brief(name), allowed="{name: value}", hint=hint)
            _check_plain(inner, f"{key}.{name}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _check_plain(inner, f"{key}[{number}]")
    elif not isinstance(value, str | int | float | None):
        allowed = "a number, a text, true, false, null, a list or a mapping"
        raise ConfigError(f"'{key}' has a value that no setting can have.", given=brief(value), allowed=allowed)
