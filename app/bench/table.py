"""A table that reads well in a terminal and is Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, num_names: int) -> str:
    """The first `num_names` columns are words, the others numbers."""
    rows = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    header = [cell.replace("|", r"\|") for cell in header]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = [
        "-" * width if index < num_names else "-" * (width - 1) + ":"
        for index, width in enumerate(widths)
    ]
    lines = []
    for row in (header, rule, *rows):
        cells = [
            cell.ljust(width) if index < num_names else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{1000 * value:.1f}"
