"""The metrics of all replicas as metric text, in Prometheus' format."""

from collections.abc import Iterable, Mapping

from prometheus_client import Metric, exposition


class _Merged:
    """What `generate_latest` reads of a registry."""

    def __init__(self, replicas: Mapping[str, Iterable[Metric]]) -> None:
        self._replicas = replicas

    def collect(self) -> Iterable[Metric]:
        merged: dict[str, Metric] = {}
        for replica, metrics in self._replicas.items():
            for metric in metrics:
                empty = Metric(metric.name, metric.documentation, metric.type, metric.unit)
                merged.setdefault(metric.name, empty).samples += [
                    sample._replace(labels={**sample.labels, "replica": replica})
                    for sample in metric.samples
                ]
        return merged.values()


def with_replicas(replicas: Mapping[str, Iterable[Metric]]) -> bytes:
    """Every series of every replica, with a label `replica`."""
    return exposition.generate_latest(_Merged(replicas))
