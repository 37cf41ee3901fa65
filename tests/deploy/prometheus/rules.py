"""The rule files of `deploy/prometheus`, read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy/prometheus"
RULE_FILES = tuple(sorted(FOLDER.glob("rules/*.yml")))


def rules() -> Iterator[dict[str, Any]]:
    """Every recording rule and alert."""
    for path in RULE_FILES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
RECORDS = {rule["record"]: rule for rule in rules() if "record" in rule}
