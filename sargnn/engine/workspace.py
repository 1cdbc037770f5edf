"""What an engine's operators share: memory for large tensors, and the record of where time goes."""

from __future__ import annotations

from dataclasses import dataclass, field

from sargnn.engine.pool import Pool
from sargnn.profile import Profile


@dataclass(frozen=True)
class Workspace:
    """One engine's memory and record.

    Attributes:
        pool: memory for large tensors.
        profile: where time is recorded.
    """

    pool: Pool = field(default_factory=Pool)
    profile: Profile = field(default_factory=lambda: Profile(recording=False))
