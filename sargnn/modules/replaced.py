"""What of a user's module is computed otherwise than by itself, in lines for the log."""

from __future__ import annotations

from torch import nn

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def describe_replaced(module: nn.Module) -> list[str]:
    """One line for its dropouts and one for its batch norms, if it has any, with their names in ``module``."""
    dropouts = [
        f"{name or type(submodule).__name__} (p = {submodule.p:g})"
        for name, submodule in module.named_modules()
        if type(submodule) is nn.Dropout
    ]
    norms = [name or type(submodule).__name__ for name, submodule in module.named_modules() if isinstance(submodule, _NORMS)]
    lines = []
    if dropouts:
        lines.append(f"nn.Dropout {', '.join(dropouts)}: masks are drawn by original id")
    if norms:
        lines.append(f"nn.BatchNorm {', '.join(norms)}: statistics are over the rows of all workers")
    return lines
