"""The kinds of panels that the dashboards are made of, with the same defaults everywhere.

Every panel takes title, description, unit and queries; `Query` is an expression and its legend.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
"""The data source that the reader chooses."""

WIDTH = 24
TILE_HEIGHT, PANEL_HEIGHT = 4, 8

SHARE, SECONDS, COUNT = "percentunit", "s", "short"
TOKENS_PER_SECOND, REQUESTS_PER_SECOND = "suffix: tok/s", "reqps"
RATIO, TOKENS = "suffix: x", "suffix: tok"
ROWS_PER_SECOND, STEPS_PER_SECOND = "suffix: rows/s", "suffix: steps/s"
NAME = "string"
"""The units in use; a `suffix:` is Grafana's way to name a unit that it lacks."""

GREEN, ORANGE, RED, BLUE = "green", "orange", "red", "blue"


PanelBuilder = Builder[dashboard.Panel]
"""What every kind of panel is."""


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression and how its series are named."""

    expr: str
    legend: str


def _target(query: Query, letter: str) -> prometheus.Dataquery:
    """A query over the shown time."""
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend)
    return target.ref_id(letter).datasource(SOURCE).range()


def _targets(queries: Sequence[Query]) -> list[Builder[Dataquery]]:
    return [_target(query, chr(ord("A") + i)) for i, query in enumerate(queries)]


def steps(*limits: tuple[float | None, str]) -> dashboard_builders.ThresholdsConfig:
    """Colours by value: each holds from its limit on, the first from the lowest value."""
    values = [dashboard.Threshold(value=value, color=color) for value, color in limits]
    config = dashboard_builders.ThresholdsConfig().steps(values)
    return config.mode(dashboard.ThresholdsMode.ABSOLUTE)


def mapping(texts: dict[str, tuple[str, str]]) -> list[dashboard.ValueMapping]:
    """Texts and colours in place of values."""
    options = {
        value: dashboard.ValueMappingResult(text=text, color=color, index=i)
        for i, (value, (text, color)) in enumerate(texts.items())
    }
    return [dashboard.ValueMap(options=options)]


def tile(
    title: str,
    description: str,
    unit: str,
    query: Query,
    colors: dashboard_builders.ThresholdsConfig | None = None,
    *,
    width: int = 4,
) -> stat.Panel:
    """One figure of the whole shown time: an instant query, best with `$__range`."""
    panel = stat.Panel().title(title).description(description).datasource(SOURCE)
    panel = panel.unit(unit).height(TILE_HEIGHT).span(width).no_value("no data")
    target = _target(query, "A").instant()
    panel = panel.with_target(target).graph_mode(common.BigValueGraphMode.NONE)
    panel = panel.thresholds(colors or steps((None, BLUE)))
    panel = panel.color_mode(common.BigValueColorMode.VALUE)
    return panel.reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))


def name_tile(title: str, description: str, query: Query, *, width: int = 4) -> stat.Panel:
    """The names of the series that a query returns, in place of their values."""
    panel = tile(title, description, NAME, query, width=width)
    return panel.text_mode(common.BigValueTextMode.NAME)


def graph(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    width: int = 8,
    lowest: float | None = 0,
    highest: float | None = None,
    stacked: bool = False,
    bars: bool = False,
    log: bool = False,
) -> timeseries.Panel:
    """Lines over time; if asked for: stacked areas, bars for events, a logarithmic scale."""
    panel = timeseries.Panel().title(title).description(description).datasource(SOURCE)
    panel = panel.unit(unit).height(PANEL_HEIGHT).span(width).targets(_targets(queries))
    legend = common_builders.VizLegendOptions().show_legend(True)
    legend = legend.display_mode(common.LegendDisplayMode.LIST)
    panel = panel.legend(legend.placement(common.LegendPlacement.BOTTOM).calcs([]))
    tooltip = common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
    panel = panel.tooltip(tooltip.sort(common.SortOrder.DESCENDING))
    panel = panel.line_width(1).show_points(common.VisibilityMode.AUTO)
    if log:
        scale = common_builders.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10)
        panel = panel.scale_distribution(scale)
    elif lowest is not None:
        panel = panel.min(lowest)
    if highest is not None:
        panel = panel.max(highest)
    if stacked or bars:
        stacking = common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A")
        panel = panel.stacking(stacking).fill_opacity(40)
    if bars:
        # Wider than the windows of neighbouring bars overlap: else an event is in several bars.
        panel = panel.draw_style(common.GraphDrawStyle.BARS).fill_opacity(60).interval("1m")
    return panel


def heat_map(
    title: str, description: str, metric: str, selector: str, *, width: int = 8
) -> heatmap.Panel:
    """How the observations of a histogram in seconds are spread over its buckets."""
    expr = f"sum by (le) (increase({metric}_bucket{{{selector}}}[$__rate_interval]))"
    target = _target(Query(expr, "{{le}}"), "A").format(PromQueryFormat.HEATMAP)
    panel = heatmap.Panel().title(title).description(description).datasource(SOURCE)
    panel = panel.unit(SECONDS).height(PANEL_HEIGHT).span(width).with_target(target)
    panel = panel.calculate(False).cell_gap(1).show_legend()
    panel = panel.y_axis(heatmap.YAxisConfig().unit(SECONDS))
    panel = panel.cell_values(heatmap.CellValues().unit(COUNT))
    color = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges")
    return panel.color(color.exponent(0.5).steps(64)).filter_values(
        heatmap.FilterValueRange().le(1e-9)
    )


def timeline(
    title: str,
    description: str,
    query: Query,
    texts: dict[str, tuple[str, str]],
    *,
    width: int = 24,
    height: int = PANEL_HEIGHT,
) -> statetimeline.Panel:
    """A coloured bar for each series: the state in which it was at each time."""
    panel = statetimeline.Panel().title(title).description(description).datasource(SOURCE)
    panel = panel.unit(COUNT).height(height).span(width).with_target(_target(query, "A"))
    panel = panel.mappings(mapping(texts)).merge_values(True).row_height(0.8)
    return panel.show_value(common.VisibilityMode.NEVER).fill_opacity(80)
