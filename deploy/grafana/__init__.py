"""Grafana's dashboards of Specgate, as code; `python -m deploy.grafana` writes their JSON."""
