"""Draws a dashboard's panels from a Prometheus, so that a person can look at the numbers.

Not Grafana's look: only the same queries, units, scales, colours by value and annotations.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from deploy.grafana import queries
from deploy.grafana.queries import Asked, Shown

mpl.use("Agg")

Series = Sequence[Mapping[str, Any]]
Found = Sequence[tuple[Asked, Mapping[str, Any]]]
Answer = Callable[[Asked], Series]

COLUMN_IN, ROW_IN = 0.62, 0.32
NAMED_COLORS = {"green": "#2f9e44", "orange": "#e8710a", "red": "#d6336c", "blue": "#1c6fd1"}
LINES = [
    *("#1c6fd1", "#e8710a", "#2f9e44", "#d6336c", "#7048e8", "#0c8599", "#a0791c", "#868e96"),
    *("#5c940d", "#c2255c", "#364fc7"),
]


def draw(
    dashboard: Mapping[str, Any],
    answer: Answer,
    values: Mapping[str, str],
    repeated: Mapping[str, Sequence[str]],
    between: tuple[float, float],
    step_s: float,
    path: Path,
) -> None:
    """Draws every panel at its place in the grid, for the time `between` two times, in steps."""
    shown = queries.layout(dashboard, values, repeated)
    height = max(s.position[1] + s.position[3] for s in shown) + 1
    figure = Figure(figsize=(24 * COLUMN_IN, height * ROW_IN), dpi=85, facecolor="#f4f5f5")
    figure.text(0.012, 1 - 0.6 / height, dashboard["title"], size=13, weight="bold", va="center")
    marks = [
        (color_of(annotation["iconColor"]), _times(answer(asked), step_s))
        for annotation, asked in zip(
            dashboard["annotations"]["list"], queries.annotations(dashboard, values), strict=True
        )
    ]
    for one in shown:
        axes = _place(figure, one, height, answer, step_s)
        if axes is not None:
            _finish(axes, marks, between)
    figure.savefig(path)
    # 200 colours are enough, and the file is half as large.
    Image.open(path).convert("RGB").quantize(200).save(path, optimize=True)


def color_of(name: str) -> str:
    """Matplotlib's colour for Grafana's name."""
    return NAMED_COLORS.get(name, name)


def amount(value: float, unit: str) -> str:
    """A value with its unit, as Grafana writes it."""
    if not math.isfinite(value):
        return "no data"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s":
        for limit, factor, name in ((1e-3, 1e6, "µs"), (1, 1e3, "ms")):
            if 0 < abs(value) < limit:
                return f"{value * factor:.3g} {name}"
        return f"{value:.3g} s"
    text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    suffix = " req/s" if unit == "reqps" else unit.partition("suffix:")[2]
    return text + suffix


def _place(figure: Figure, shown: Shown, height: int, answer: Answer, step_s: float) -> Axes | None:
    """Draws one panel; gives its axes, if it has some."""
    x, y, w, h = shown.position
    top = 1 - (y + 1) / height
    if shown.kind == "row":
        figure.text(0.012, top - 0.5 / height, shown.title, size=10, weight="bold", va="center")
        return None
    left, width = x / 24, w / 24
    box = mpl.patches.Rectangle(
        (left + 0.002, top - (h - 0.15) / height),
        width - 0.004,
        (h - 0.15) / height,
        facecolor="white",
        edgecolor="#d8d9da",
        transform=figure.transFigure,
        zorder=-1,
    )
    figure.add_artist(box)
    title_y = top - 0.55 / height
    figure.text(left + 0.006, title_y, shown.title, size=8.5, weight="bold", va="center")
    series = [(asked, one) for asked in shown.queries for one in answer(asked)]
    if shown.kind == "stat":
        _stat(figure, shown, series, (left + width / 2, top - (h + 0.6) / 2 / height))
        return None
    inset = 0.11 if shown.kind == "state-timeline" else 0.045
    foot = 1.1 if shown.kind in ("heatmap", "state-timeline") else 2.5
    place = (left + inset, top - (h - foot) / height)
    axes = figure.add_axes((*place, width - inset - 0.008, (h - foot - 1.1) / height))
    kinds = {"timeseries": _graph, "heatmap": _heat_map, "state-timeline": _timeline}
    kinds[shown.kind](axes, shown, series, step_s)
    return axes


def _finish(
    axes: Axes, marks: Sequence[tuple[str, list[float]]], between: tuple[float, float]
) -> None:
    """The time axis and the annotations."""
    for color, times in marks:
        for time_s in times:
            axes.axvline(time_s, color=color, lw=0.7, ls="--", alpha=0.6)
    axes.set_xlim(between)
    axes.tick_params(labelsize=6.5, length=2)
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
    axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(_clock))


def _clock(time_s: float, _: object) -> str:
    """Minutes and seconds within the hour: the pictures show some minutes."""
    return f"{int(time_s) % 3600 // 60:02d}:{int(time_s) % 60:02d}"


def _name(asked: Asked, one: Mapping[str, Any]) -> str:
    labels = one["metric"]
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), asked.legend)


def _points(one: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    pairs = one["values"] if "values" in one else [one["value"]]
    return [float(t) for t, _ in pairs], [float(v) for _, v in pairs]


def _times(series: Series, step_s: float) -> list[float]:
    """When an annotation begins; consecutive points are one annotation."""
    begun: list[float] = []
    for one in series:
        times, _ = _points(one)
        before = [-math.inf, *times[:-1]]
        begun += [t for t, last in zip(times, before, strict=True) if t - last > 1.5 * step_s]
    return begun


def _stat(
    figure: Figure,
    shown: Shown,
    series: Found,
    center: tuple[float, float],
) -> None:
    config = shown.raw["fieldConfig"]["defaults"]
    color = "black"
    if shown.raw["options"].get("textMode") == "name":
        text = ", ".join(_name(*pair) for pair in series) or "no data"
    else:
        value = _points(series[0][1])[1][-1] if series else math.nan
        text = amount(value, config["unit"])
        for step in config["thresholds"]["steps"]:
            if step["value"] is None or value >= step["value"]:
                color = color_of(step["color"])
    figure.text(*center, text, size=15, color=color, ha="center", va="center")


def _graph(axes: Axes, shown: Shown, series: Found, step_s: float) -> None:
    config = shown.raw["fieldConfig"]["defaults"]
    custom = config.get("custom", {})
    lines = [(_name(*pair), *_points(pair[1])) for pair in series]
    colors = [LINES[i % len(LINES)] for i in range(len(lines))]
    if custom.get("stacking", {}).get("mode") == "normal" and lines:
        _stacked(axes, lines, colors, step_s, bars=custom.get("drawStyle") == "bars")
    else:
        for (_, times, numbers), color in zip(lines, colors, strict=True):
            axes.plot(*_with_gaps(times, numbers, step_s), color=color, lw=1, marker=".", ms=1.5)
    if not lines:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color="gray")
    if custom.get("scaleDistribution", {}).get("type") == "log":
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(mpl.ticker.NullFormatter())
    else:
        axes.set_ylim(config.get("min"), config.get("max"))
        axes.yaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
    formatter = mpl.ticker.FuncFormatter(lambda value, _: amount(value, config["unit"]))
    axes.yaxis.set_major_formatter(formatter)
    axes.grid(axis="y", lw=0.3)
    axes.legend(
        [mpl.lines.Line2D([], [], color=color) for color in colors],
        [name for name, _, _ in lines],
        loc="upper left",
        bbox_to_anchor=(-0.1, -0.11),
        ncol=5,
        fontsize=5.5,
        frameon=False,
        handlelength=1,
        columnspacing=0.8,
        labelspacing=0.3,
    )


def _stacked(
    axes: Axes,
    lines: Sequence[tuple[str, list[float], list[float]]],
    colors: Sequence[str],
    step_s: float,
    *,
    bars: bool,
) -> None:
    """Areas, or bars, on top of each other; a missing point counts as 0."""
    known = sorted({t for _, ts, _ in lines for t in ts})
    times = np.round(np.arange(known[0], known[-1] + step_s / 2, step_s), 3)
    below = np.zeros(len(times))
    for (_, own, numbers), color in zip(lines, colors, strict=True):
        row = dict(zip(np.round(own, 3), numbers, strict=True))
        above = below + np.nan_to_num([max(0.0, row.get(t, 0.0)) for t in times])
        if bars:
            axes.bar(times, above - below, width=0.5 * step_s, bottom=below, color=color)
        else:
            axes.fill_between(times, below, above, color=color, alpha=0.6, lw=0)
        below = above


def _with_gaps(
    times: Sequence[float], numbers: Sequence[float], step_s: float
) -> tuple[list[float], list[float]]:
    """A hole in the line where points are missing."""
    xs: list[float] = []
    ys: list[float] = []
    for time_s, number in zip(times, numbers, strict=True):
        if xs and time_s - xs[-1] > 1.5 * step_s:
            xs.append(xs[-1] + step_s)
            ys.append(math.nan)
        xs.append(time_s)
        ys.append(number)
    return xs, ys


def _heat_map(axes: Axes, shown: Shown, series: Found, step_s: float) -> None:
    """Observations per bucket: Prometheus' buckets are cumulative."""
    buckets = sorted(((float(one["metric"]["le"]), one) for _, one in series), key=lambda b: b[0])
    known = [t for _, one in buckets for t in _points(one)[0]]
    times = np.round(np.arange(min(known), max(known) + step_s / 2, step_s), 3).tolist()
    rows = [{round(t, 3): v for t, v in zip(*_points(one), strict=True)} for _, one in buckets]
    cumulative = np.array([[row.get(t, 0.0) for t in times] for row in rows])
    counts = np.diff(cumulative, axis=0, prepend=0).clip(min=0)
    used = np.flatnonzero(counts.sum(axis=1))
    if not len(used):
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color="gray")
        return
    low, high = used[0], used[-1] + 1
    shade = np.ma.masked_equal(np.sqrt(counts[low:high]), 0)
    axes.pcolormesh(times, np.arange(low, high), shade, cmap="Oranges", shading="nearest")
    names = ["> all" if math.isinf(le) else amount(le, "s") for le, _ in buckets]
    every = max(1, (high - low) // 7)
    axes.set_yticks(np.arange(low, high, every), names[low:high:every])


def _timeline(axes: Axes, shown: Shown, series: Found, step_s: float) -> None:
    options = shown.raw["fieldConfig"]["defaults"]["mappings"][0]["options"]
    for i, (_, one) in enumerate(series):
        own, numbers = _points(one)
        colors = [color_of(options[f"{number:.0f}"]["color"]) for number in numbers]
        axes.bar(own, 0.8, width=step_s, bottom=i - 0.4, color=colors, align="edge")
    axes.set_yticks(range(len(series)), [_name(*pair) for pair in series])
