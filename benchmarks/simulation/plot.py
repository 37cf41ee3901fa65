"""The regret of policies as a plot. Needs matplotlib, which the extra `bench` installs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.simulation.replay import Replay

STATIC = "static choices"
"""Their name in the legend."""


def save(results: Sequence[Replay], path: Path) -> None:
    """Plots tokens per second over those of the best static choice.

    One panel for each number of streams. In it each workload has a grey line for each static choice
    and a dot for each policy and the label oracle. The suffix of `path` determines the format.
    """
    from matplotlib.figure import Figure

    streams = list(dict.fromkeys(result.streams for result in results))
    figure = Figure(figsize=(9, 2.6 * len(streams) + 0.6), layout="constrained")
    panels = figure.subplots(len(streams), 1, squeeze=False)
    for row, count in enumerate(streams):
        _panel(panels[row][0], [each for each in results if each.streams == count], count)
    handles, labels = panels[0][0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(unique.values(), unique, loc="outside lower center", ncols=5)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(panel: Any, results: Sequence[Replay], streams: int) -> None:
    workloads = list(dict.fromkeys(result.workload for result in results))
    static = set(results[0].regret_static)
    methods = [m for m in dict.fromkeys(each.method for each in results) if m not in static]
    for position, workload in enumerate(workloads):
        here = {each.method: each for each in results if each.workload == workload}
        for each in here.values():
            share = 1 - each.regret_static[each.best_static]
            if each.method in static:
                panel.plot(
                    [position - 0.35, position + 0.35],
                    [share, share],
                    color="0.7",
                    linewidth=1,
                    label=STATIC,
                )
            else:
                number = methods.index(each.method)
                shift = 0.7 * ((number + 0.5) / len(methods) - 0.5)
                panel.plot([position + shift], [share], f"C{number}o", label=each.method)
    panel.margins(y=0.1)
    panel.set_ylim(bottom=0)
    panel.axhline(1.0, color="black", linewidth=1)
    panel.set(
        title=f"{streams} stream{'s' * (streams > 1)}",
        ylabel="tokens/s over best static",
    )
    panel.set_xticks(range(len(workloads)), workloads)
    panel.grid(alpha=0.3)
