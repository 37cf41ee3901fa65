"""The metrics of all replicas as one text, in Prometheus' format."""

from collections.abc import Mapping


def with_replicas(texts: Mapping[str, str]) -> str:
    """Every series of every replica, with a label `replica`.

    A metric's lines stand together, with the help and the type that the first replica gives it.

    Args:
        texts: replica -> its metrics in the text format.
    """
    heads: dict[str, list[str]] = {}
    series: dict[str, list[str]] = {}
    for replica, text in texts.items():
        label = f'replica="{replica}"'
        metric, is_first = "", False
        for line in text.splitlines():
            if line.startswith("# HELP "):
                metric = line.split(" ", 3)[2]
                is_first = metric not in heads
                heads.setdefault(metric, [])
            if not line.startswith("#"):
                series.setdefault(metric, []).append(_labelled(line, label))
            elif is_first:
                heads[metric].append(line)
    return "".join(
        f"{line}\n" for metric, head in heads.items() for line in [*head, *series.get(metric, ())]
    )


def _labelled(line: str, label: str) -> str:
    """A series with one more label. A name has neither a brace nor a space."""
    name, space, value = line.partition(" ")
    bare, brace, rest = line.partition("{")
    if brace and len(bare) < len(name):
        return f"{bare}{{{label},{rest}"
    return f"{name}{{{label}}}{space}{value}"
