"""Reads a dashboard as Grafana does: its panels, and its queries with variables filled in."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "deploy/grafana/json"
"""Where Grafana's provisioning finds the dashboards."""

NAMES = ("overview", "proposers", "policy", "fleet")

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::\w+)?\})")

Values = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Asked:
    """A query that a panel or an annotation sends.

    Attributes:
        place: the title of its panel, or the name of its annotation.
        letter: its letter in the panel.
        expr: PromQL without variables.
        legend: how its series are named, as `{{label}}`.
        instant: it asks for one time, the end of the shown time.
    """

    place: str
    letter: str
    expr: str
    legend: str
    instant: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """A panel as it stands on the screen; one of several if the panel is repeated.

    Attributes:
        raw: the panel's JSON.
        position: x, y, width and height, in Grafana's grid of 24 columns.
    """

    raw: Mapping[str, Any]
    title: str
    position: tuple[int, int, int, int]
    queries: tuple[Asked, ...]

    @property
    def kind(self) -> str:
        """The type of visualization."""
        kind: str = self.raw["type"]
        return kind


def load(path: Path) -> dict[str, Any]:
    """A dashboard's JSON."""
    dashboard: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return dashboard


def fill(text: str, values: Values) -> str:
    """Replaces the variables. Other text with a `$` stays, as the `$1` of label_replace."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return values.get(name, match[0])

    return _VARIABLE.sub(value, text)


def variables(text: str) -> set[str]:
    """The names of the variables in a text."""
    names = {match[1] or match[2] for match in _VARIABLE.finditer(text)}
    return {name for name in names if not name.isdigit()}


def defaults(dashboard: Mapping[str, Any]) -> dict[str, str]:
    """Each variable's value when the dashboard opens; "All" is its regular expression for all."""
    values = {}
    for variable in dashboard["templating"]["list"]:
        current = variable.get("current", {}).get("value", "")
        values[variable["name"]] = variable["allValue"] if current == "$__all" else current
    return values


def panels(dashboard: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The JSON of every panel; rows are headings, no panels."""
    return (panel for panel in dashboard["panels"] if panel["type"] != "row")


def ask(panel: Mapping[str, Any], values: Values) -> tuple[Asked, ...]:
    """The queries of a panel with these values."""
    return tuple(
        Asked(
            panel["title"],
            target["refId"],
            fill(target["expr"], values),
            target.get("legendFormat", ""),
            bool(target.get("instant")) and not target.get("range"),
        )
        for target in panel["targets"]
    )


def annotations(dashboard: Mapping[str, Any], values: Values) -> list[Asked]:
    """The queries of the annotations."""
    return [
        Asked(
            annotation["name"],
            "A",
            fill(annotation["expr"], values),
            annotation["titleFormat"],
            False,
        )
        for annotation in dashboard["annotations"]["list"]
    ]


def layout(
    dashboard: Mapping[str, Any], values: Values, repeated: Mapping[str, Sequence[str]]
) -> list[Shown]:
    """Every panel where Grafana shows it; a repeated one for each of its variable's values.

    `repeated` has the values of the variables by which panels are repeated. Rows without panels
    are left out of it: they have no queries.
    """
    shown = []
    lower = 0
    for panel in dashboard["panels"]:
        grid = panel["gridPos"]
        x, y, width, height = grid["x"], grid["y"] + lower, grid["w"], grid["h"]
        if panel["type"] == "row":
            shown.append(Shown(panel, panel["title"], (x, y, width, height), ()))
            continue
        name = panel.get("repeat")
        places = [(x, y)]
        if name:
            columns = int(panel["maxPerRow"])
            width = 24 // columns
            count = len(repeated[name])
            places = [(i % columns * width, y + i // columns * height) for i in range(count)]
            lower += (count - 1) // columns * height
        for i, (left, top) in enumerate(places):
            own = {**values, name: repeated[name][i]} if name else values
            title = fill(panel["title"], own)
            shown.append(Shown(panel, title, (left, top, width, height), ask(panel, own)))
    return shown
