"""What fused operators work with beside their tensors: an engine's memory, and the record of where its time goes."""

from __future__ import annotations

from dataclasses import dataclass, field

from sargnn.engine.pool import Pool
from sargnn.profile import Profile


@dataclass(frozen=True)
class Workspace:
    """One engine's.

    Attributes:
        pool: memory for large tensors.
        profile: where time is recorded.
    """

    pool: Pool = field(default_factory=Pool)
    profile: Profile = field(default_factory=lambda: Profile(recording=False))
