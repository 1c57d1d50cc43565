"""The result of a benchmark as a picture: speed, acceptance, and latency over concurrency.

Imports matplotlib late: it is an extra, and its absence is said before anything is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.bench.bench_error import BenchError
from app.bench.level import Level
from app.bench.prompt import ALL_KINDS
from app.bench.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
PANEL_INCHES = (4.6, 3.6)
BARS_WIDTH = 0.8
# Grey for the first side; the others can be told apart without colours too (Okabe and Ito).
COLORS = ("#8c8c8c", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    # Names may have dollar signs.
    "text.parse_math": False,
    "svg.hashsalt": "tandem",
}


def require_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise BenchError("--plot needs matplotlib: install Tandem with its extra, '.[plot]'")


def save_plot(report: Report, path: Path) -> list[Path]:
    """Both files; `path` may have the suffix of one of them."""
    import matplotlib

    stem = path.with_suffix("") if path.suffix in SUFFIXES else path
    files = [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]
    with matplotlib.rc_context(STYLE):
        figure = _figure(report)
        for file in files:
            # A date would make each file another one.
            metadata = {"Date": None} if file.suffix == ".svg" else None
            figure.savefig(file, dpi=150, facecolor="white", metadata=metadata)
    return files


def _figure(report: Report) -> Figure:
    from matplotlib.figure import Figure

    drawers = [_draw_speed, _draw_acceptance]
    if len(report.levels) > 1:
        drawers.append(_draw_latency)
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * len(drawers), height), layout="constrained")
    figure.suptitle(f"{report.model}: the same text on all sides", fontsize=12)
    panels = figure.subplots(1, len(drawers), squeeze=False)[0]
    for draw, panel in zip(drawers, panels, strict=True):
        draw(panel, report)
    return figure


def _draw_speed(axes: Axes, report: Report) -> None:
    level = report.levels[0]
    names = report.side_names
    width = BARS_WIDTH / len(names)
    for index, name in enumerate(names):
        speeds = [level.measurement(kind, name).tokens_per_second or 0 for kind in level.kinds]
        offset = (index - (len(names) - 1) / 2) * width
        places = [place + offset for place in range(len(speeds))]
        bars = axes.bar(places, speeds, width, label=name, color=_color(index))
        if index:
            axes.bar_label(bars, _ratios(level, names[0], speeds), padding=2, fontsize=7)
    axes.set_xticks(range(len(level.kinds)), level.kinds, rotation=30, ha="right")
    axes.grid(visible=False, axis="x")
    axes.set_title(f"Tokens/s, {level.concurrency} at a time")
    axes.margins(y=0.12)
    axes.legend(ncols=2, fontsize=8)


def _ratios(level: Level, first: str, speeds: Sequence[float]) -> list[str]:
    slow = [level.measurement(kind, first).tokens_per_second for kind in level.kinds]
    return [f"{fast / base:.1f}×" if base else "" for fast, base in zip(speeds, slow, strict=True)]


def _draw_acceptance(axes: Axes, report: Report) -> None:
    from matplotlib.ticker import MaxNLocator

    level = report.levels[0]
    for index, name in enumerate(report.side_names):
        rates = level.measurement(ALL_KINDS, name).acceptance_per_position
        if rates:
            positions = range(1, len(rates) + 1)
            percents = [100 * rate for rate in rates]
            axes.plot(positions, percents, marker="o", ms=4, label=name, color=_color(index))
    axes.set_title("Drafts accepted up to a position, %")
    axes.set_xlabel("position in the draft")
    axes.set_ylim(0, 105)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if axes.lines:
        axes.legend(fontsize=8)


def _draw_latency(axes: Axes, report: Report) -> None:
    places = range(len(report.levels))
    for index, name in enumerate(report.side_names):
        measured = [level.measurement(ALL_KINDS, name) for level in report.levels]
        for percentile, line in ((50, "-"), (99, ":")):
            seconds = [each.inter_token_latency(percentile) for each in measured]
            values = [float("nan") if s is None else 1000 * s for s in seconds]
            label = f"{name}, p{percentile}"
            axes.plot(places, values, line, marker="o", ms=4, label=label, color=_color(index))
    axes.set_xticks(places, [str(level.concurrency) for level in report.levels])
    axes.set_title("Time per token, ms")
    axes.set_xlabel("requests at a time")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)


def _color(index: int) -> str:
    return COLORS[index % len(COLORS)]
