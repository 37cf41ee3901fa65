"""The plots of the report, as SVG that follows the page's colours. Needs matplotlib."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.load.arrivals import Ramp
from benchmarks.load.results import ConditionResults
from benchmarks.load.samples import Pass, Sample

COLOURS = (
    "#3b82c4", "#e07b39", "#3aa76d", "#c9504d", "#8e6bbd",
    "#a9793f", "#d66ba0", "#7f8c8d", "#a8a13a", "#2aa6b0",
)  # fmt: skip
"""Readable on a light and on a dark page."""
FOREGROUND = "#010203"
"""Stands for the text colour of the page, which matplotlib has no name for."""
CURVE_POINTS, CURVE_END, BINS = 200, 0.99, 60
LATENCIES: Mapping[str, Callable[[Sample], float | None]] = {
    "TTFT": lambda sample: sample.ttft_ms,
    "TPOT": lambda sample: sample.tpot_ms,
    "end to end": lambda sample: sample.e2e_ms,
}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"),
        FOREGROUND,
    ),
}


def throughput(results: Sequence[ConditionResults], sides: Sequence[str]) -> str:
    """Bars of tokens per second: a panel for each workload, a group for each load."""
    panels: dict[tuple[str, float | None], list[ConditionResults]] = {}
    for result in results:
        key = (result.condition.workload, result.condition.temperature)
        panels.setdefault(key, []).append(result)

    def draw(axes: Sequence[Any]) -> None:
        for axis, ((workload, heat), here) in zip(axes, panels.items(), strict=True):
            values = [
                [{f.side: f.tokens_per_s for f in r.figures}.get(side, 0.0) for r in here]
                for side in sides
            ]
            _bars(axis, [r.condition.arrivals.name for r in here], sides, values)
            title = workload if heat is None else f"{workload}, temperature {heat:g}"
            axis.set(title=title, ylabel="output tokens/s")

    return _svg("throughput", len(panels), draw, 2 if len(panels) > 1 else 1)


def latency_curves(number: int, passes: Sequence[Pass], sides: Sequence[str]) -> str:
    """The cumulative distributions of one condition's latencies, up to the percentile 99."""

    def draw(axes: Sequence[Any]) -> None:
        for axis, (name, latency) in zip(axes, LATENCIES.items(), strict=True):
            for position, side in enumerate(sides):
                values = _values(passes, side, latency)
                if values:
                    # One slow request in a hundred must not press the curves into a corner.
                    levels = np.linspace(0, CURVE_END, min(len(values), CURVE_POINTS))
                    curve = np.quantile(values, levels)
                    axis.plot(curve, levels, label=side, **_line(position))
            axis.set(title=name, ylabel="share of requests", ylim=(0, 1.02))
            axis.set(xlabel="ms, up to the percentile 99")
            axis.grid(alpha=0.25)

    return _svg(f"latency{number}", len(LATENCIES), draw, len(LATENCIES))


def label_bars(number: int, result: ConditionResults, sides: Sequence[str]) -> str:
    """Mean end-to-end latency and tokens per step for each label."""
    labels = list(dict.fromkeys(label for f in result.figures for label in f.by_label))
    figures = {f.side: f.by_label for f in result.figures}

    def draw(axes: Sequence[Any]) -> None:
        latency = [
            [
                _mean(figures[side][la].latencies.e2e) if la in figures.get(side, {}) else 0.0
                for la in labels
            ]
            for side in sides
        ]
        steps = [
            [
                (figures[side][la].tokens_per_step or 0.0) if la in figures.get(side, {}) else 0.0
                for la in labels
            ]
            for side in sides
        ]
        _bars(axes[0], labels, sides, latency)
        _bars(axes[1], labels, sides, steps)
        axes[0].set(title="mean end-to-end latency", ylabel="ms")
        axes[1].set(title="tokens per step")

    return _svg(f"label{number}", 2, draw, 2)


def timeline(number: int, passes: Sequence[Pass], sides: Sequence[str]) -> str:
    """Tokens per second over time, the mean over repetitions; for a ramp the concurrency too."""
    longest = max(each.seconds for each in passes)
    edges = np.linspace(0, max(longest, 1e-3), BINS + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    arrivals = passes[0].condition.arrivals

    def draw(axes: Sequence[Any]) -> None:
        axis = axes[0]
        for position, side in enumerate(sides):
            rates = [token_rate(each, edges) for each in passes if each.side == side]
            if rates:
                axis.plot(middles, np.mean(rates, axis=0), label=side, **_line(position))
        axis.set(xlabel="s", ylabel="output tokens/s", ylim=(0, None))
        axis.grid(alpha=0.25)
        if isinstance(arrivals, Ramp):
            other = axis.twinx()
            limits = [arrivals.limit(middle_s) for middle_s in middles]
            other.plot(middles, limits, color=FOREGROUND, alpha=0.35, drawstyle="steps-mid")
            other.set(ylabel="concurrency", ylim=(0, None))
            other.spines["right"].set_visible(True)

    return _svg(f"timeline{number}", 1, draw, 1)


def token_rate(each: Pass, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Output tokens per second of a pass.

    Args:
        edges: float64 [B + 1], borders of the bins in seconds after the start of the pass.

    Returns:
        float64 [B].
    """
    times: list[float] = []
    tokens: list[int] = []
    for sample in each.samples:
        times += [sample.sent_s + offset_ms / 1e3 for offset_ms in sample.times_ms]
        tokens += np.diff(sample.emitted, prepend=0).tolist()
    counted, _ = np.histogram(times, bins=edges, weights=tokens)
    return counted / np.diff(edges)


def _values(
    passes: Sequence[Pass], side: str, latency: Callable[[Sample], float | None]
) -> list[float]:
    return [
        value
        for each in passes
        if each.side == side
        for sample in each.samples
        if sample.error is None and (value := latency(sample)) is not None
    ]


def _mean(values: Any) -> float:
    return 0.0 if values is None else float(values.mean)


def _bars(
    axis: Any, groups: Sequence[str], sides: Sequence[str], values: Sequence[Sequence[float]]
) -> None:
    """Grouped bars; `values` is [sides, groups]."""
    width = 0.8 / max(len(sides), 1)
    places = np.arange(len(groups))
    for position, side in enumerate(sides):
        shift = (position - (len(sides) - 1) / 2) * width
        colour = COLOURS[position % len(COLOURS)]
        axis.bar(places + shift, values[position], width * 0.92, label=side, color=colour)
    axis.set_xticks(places, groups)
    # With less than three groups, bars of the usual width.
    room = max(len(groups), 3) / 2
    middle = (len(groups) - 1) / 2
    axis.set_xlim(middle - room, middle + room)
    axis.grid(axis="y", alpha=0.25)
    axis.set_axisbelow(True)


def _line(position: int) -> dict[str, Any]:
    dashes = ("-", "--", ":", "-.")
    return {
        "color": COLOURS[position % len(COLOURS)],
        "linestyle": dashes[position // len(COLOURS) % len(dashes)],
        "linewidth": 1.6,
    }


def _svg(name: str, panels: int, draw: Callable[[Sequence[Any]], None], columns: int) -> str:
    """Draws panels and returns the `svg` element; `name` makes its ids unique in the page."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = -(-panels // columns)
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(10.5, 3.1 * rows), layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for unused in axes[panels:]:
            unused.set_visible(False)
        draw(axes[:panels])
        handles, labels = axes[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _for_page(buffer.getvalue(), name)


def _for_page(svg: str, name: str) -> str:
    """The element alone, with ids of its own, the page's text colour and its width."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return svg.replace(FOREGROUND, "currentColor")
