"""The comparison as Markdown, a row for each run, and how far plans are from runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sargnn.bench.plan.rows import QUANTITIES, Row, errors_of

NOT_PLANNED, FAILED = "not planned", "failed"


def head() -> list[str]:
    """The table's first two lines."""
    names = ["model", "mode", "workers", "more"]
    for name, (unit, _) in QUANTITIES.items():
        names += [f"{name}, {unit}", "planned"]
    names.append("largest in")
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def line(row: Row) -> str:
    """A row: of each quantity what was measured of the worker that has most, and planned / measured of that furthest off."""
    config = row.point.config
    cells = [row.point.case, config.mode.name, str(config.world), row.point.more]
    for name, (unit, factor) in QUANTITIES.items():
        measured, ratio = row.measured.get(name), row.ratio(name)
        digits = 0 if unit == "MB" else 2
        cells += [
            "" if measured is None else f"{max(measured) * factor:.{digits}f}",
            "" if ratio is None else f"{ratio:.3f}",
        ]
    cells.append(row.phase or f"{NOT_PLANNED if row.measured else FAILED}: {row.fault.replace('|', '/')}")
    return f"| {' | '.join(cells)} |"


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Lines on the errors of each quantity that is planned, and on rows without one."""
    for name in QUANTITIES:
        errors = errors_of(rows, name)
        if errors is not None:
            worst = f"worst {errors.worst:.1%} ({errors.row.point.case}, {errors.row.point.name})"
            yield f"{name}: mean absolute error {errors.mean:.1%}, {worst}, of {errors.count} runs"
    for what, count in (
        (NOT_PLANNED, sum(1 for row in rows if row.measured and not row.planned)),
        (FAILED, sum(1 for row in rows if not row.measured)),
    ):
        if count:
            yield f"{what}: {count} of {len(rows)} runs"


def markdown(rows: Sequence[Row]) -> list[str]:
    """All of it."""
    return [*head(), *(line(row) for row in rows), "", *(f"- {text}" for text in summary(rows))]
