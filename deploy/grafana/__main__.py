"""Writes the dashboards' JSON: `python -m deploy.grafana`."""

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.dashboards import fleet, overview, policy, proposers

FOLDER = Path(__file__).resolve().parent / "json"
"""Where Grafana's provisioning finds the JSON."""

BUILDERS = {
    "overview": overview.build,
    "proposers": proposers.build,
    "policy": policy.build,
    "fleet": fleet.build,
}


def render(name: str) -> str:
    """The JSON of a dashboard, as committed."""
    dashboard = BUILDERS[name]().build()
    for number, panel in enumerate(dashboard.panels or (), 1):
        panel.id_val = number
    return json.dumps(dashboard, cls=JSONEncoder, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Writes every dashboard."""
    for name in BUILDERS:
        (FOLDER / f"{name}.json").write_text(render(name), encoding="utf-8")


if __name__ == "__main__":
    main()
