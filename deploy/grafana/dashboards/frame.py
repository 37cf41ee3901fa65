"""What all dashboards share: data source, job, instance, annotations, links between them."""

from collections.abc import Sequence

from grafana_foundation_sdk.builders.dashboard import (
    CustomVariable,
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard

from deploy.grafana.dashboards.panels import SOURCE, PanelBuilder

SELECTOR = 'job=~"$job",instance=~"$instance"'
"""The labels by which every query selects the servers that the reader chose."""

GENERATION = SELECTOR + ',route=~"/v1/((chat/)?completions|responses)"'
"""The same, and the routes that generate."""

TAG = "specgate"
NAMED = "specgate_spec_method_info"
"""A metric that every server has; the variables list its labels."""


class Annotation(dashboard.AnnotationQuery):
    """An annotation by a Prometheus query, with the fields of that data source.

    The SDK's class has only the fields that all data sources share.
    """

    def __init__(self, name: str, color: str, expr: str, title: str, text: str) -> None:
        super().__init__(name=name, datasource=SOURCE, icon_color=color, expr=expr)
        self.hide = False
        self._title, self._text = title, text

    def to_json(self) -> dict[str, object]:
        """The annotation as Grafana reads it."""
        own = {"titleFormat": self._title, "textFormat": self._text, "tagKeys": "instance"}
        return super().to_json() | own | {"step": "15s", "useValueForTime": False}


class _Built(Builder[dashboard.AnnotationQuery]):
    """An annotation that is ready."""

    def __init__(self, annotation: Annotation) -> None:
        self._annotation = annotation

    def build(self) -> dashboard.AnnotationQuery:
        """The annotation."""
        return self._annotation


def _annotations() -> list[Builder[dashboard.AnnotationQuery]]:
    """Switches, failed switches and replaced engines.

    The info metric has a series for the active method only. So a method that has one now, and had
    none a step earlier, became active in between.
    """
    info = f"{NAMED}{{{SELECTOR}}}"
    failed = f'specgate_spec_method_switches_total{{{SELECTOR},outcome!="switched"}}'
    restarts = f"specgate_engine_restarts_total{{{SELECTOR}}}"
    return [
        _Built(Annotation(*fields))
        for fields in (
            (
                "Switches",
                "blue",
                f"{info} unless {info} offset $__interval",
                "{{spec_method}} is the active method",
                "{{instance}}",
            ),
            (
                "Switches that did not happen",
                "orange",
                f"sum by (instance, mode, outcome) (increase({failed}[$__rate_interval])) > 0",
                "A switch was {{outcome}}",
                "{{instance}}, mode {{mode}}",
            ),
            (
                "Dead engines",
                "red",
                f"sum by (instance, outcome) (increase({restarts}[$__rate_interval])) > 0",
                "The engine's process died; its replacement: {{outcome}}",
                "{{instance}}",
            ),
        )
    ]


def label_variable(name: str, label: str, description: str, series: str) -> QueryVariable:
    """A choice among the values of the label `name` of a series; all at first."""
    variable = QueryVariable(name).label(label).description(description).datasource(SOURCE)
    variable = variable.query(
        {"query": f"label_values({series},{name})", "refId": f"variable-{name}"}
    )
    every = dashboard.VariableOption(selected=True, text="All", value="$__all")
    variable = variable.multi(True).include_all(True).all_value(".+").current(every)
    variable = variable.refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
    return variable.sort(dashboard.VariableSort.ALPHABETICAL_ASC)


def choice(name: str, label: str, description: str, *values: str) -> CustomVariable:
    """A choice among fixed values; the first one at first."""
    options = [
        dashboard.VariableOption(selected=i == 0, text=value, value=value)
        for i, value in enumerate(values)
    ]
    variable = CustomVariable(name).label(label).description(description)
    return variable.values(",".join(values)).options(options).current(options[0])


def frame(name: str, title: str, description: str, *variables: object) -> Dashboard:
    """An empty dashboard with the variables and annotations of all, and `variables`."""
    built = Dashboard(f"Specgate / {title}").uid(f"specgate-{name}").description(description)
    built = built.tags([TAG]).time("now-1h", "now").refresh("30s").timezone("browser")
    built = built.tooltip(dashboard.DashboardCursorSync.CROSSHAIR).editable()
    source = DatasourceVariable("datasource").label("Data source").type("prometheus")
    built = built.with_variable(source.description("The Prometheus that scrapes the servers"))
    servers = "The servers' job in Prometheus"
    built = built.with_variable(label_variable("job", "Job", servers, NAMED))
    address = "The servers' addresses"
    series = f'{NAMED}{{job=~"$job"}}'
    built = built.with_variable(label_variable("instance", "Instance", address, series))
    for variable in variables:
        assert isinstance(variable, Builder)
        built = built.with_variable(variable)
    for annotation in _annotations():
        built = built.annotation(annotation)
    link = DashboardLink("Specgate").type(dashboard.DashboardLinkType.DASHBOARDS).tags([TAG])
    return built.link(link.include_vars(True).keep_time(True).as_dropdown(True))


def fill(built: Dashboard, rows: Sequence[tuple[str, Sequence[PanelBuilder]]]) -> Dashboard:
    """Adds rows of panels, each row under its heading."""
    for heading, panels in rows:
        built = built.with_row(Row(heading))
        for panel in panels:
            built = built.with_panel(panel)
    return built
