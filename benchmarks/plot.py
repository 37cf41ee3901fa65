"""The speedups as a plot. Needs matplotlib, which the extra `bench` installs."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.speedup import Speedup
from engine_adapter.seam.types import NONE


def check() -> None:
    """Raises `RuntimeError` if matplotlib is not installed; to be called before measuring."""
    if find_spec("matplotlib") is None:
        raise RuntimeError("the plot needs matplotlib: pip install 'specgate[bench]'")


def save(results: Sequence[Speedup], path: Path, title: str) -> None:
    """Plots the speedup over plain decoding against concurrency.

    One panel for each kind of prompts and temperature, one line for each proposer; below 1 is a
    slowdown. The suffix of `path` determines the format.
    """
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(result.kind for result in results))
    temperatures = list(dict.fromkeys(result.temperature for result in results))
    names = [n for n in dict.fromkeys(result.proposer for result in results) if n != NONE]
    figure = Figure(figsize=(4.8 * len(temperatures), 3.6 * len(kinds)), layout="constrained")
    panels = figure.subplots(len(kinds), len(temperatures), squeeze=False, sharex=True)
    for row, kind in enumerate(kinds):
        for column, temperature in enumerate(temperatures):
            panel = panels[row][column]
            here = [r for r in results if (r.kind, r.temperature) == (kind, temperature)]
            for number, name in enumerate(names):
                points = [r for r in here if r.proposer == name]
                panel.plot(
                    [r.concurrency for r in points],
                    [r.gain.median for r in points],
                    color=f"C{number % 10}",
                    marker="os^Dv"[number // 10 % 5],
                    markersize=4,
                    label=name,
                )
            _axes(panel, f"{kind} prompts, temperature {temperature:g}", here)
    figure.suptitle(title)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _axes(panel: object, title: str, results: Sequence[Speedup]) -> None:
    levels = sorted({result.concurrency for result in results})
    panel.axhline(1.0, color="black", linewidth=1)  # type: ignore[attr-defined]
    panel.set(  # type: ignore[attr-defined]
        title=title,
        xscale="log",
        xlabel="concurrent streams",
        ylabel="tokens/s, times none's",
        ylim=(0, None),
    )
    panel.set_xticks(levels, [str(level) for level in levels])  # type: ignore[attr-defined]
    panel.minorticks_off()  # type: ignore[attr-defined]
    panel.grid(alpha=0.3)  # type: ignore[attr-defined]
