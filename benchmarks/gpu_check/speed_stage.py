"""A stage: `specgate bench compare`, and its figures as rows of the report.

python -m benchmarks.gpu_check.speed_stage FOLDER RESULT ARGUMENT...
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def main(folder: str, result: str, *words: str) -> int:
    """Compares; returns its exit status. What was compared until it was ended is written.

    Args:
        folder: for the servers' logs and the figures.
        result: the file that gets the rows.
        words: arguments of `specgate bench compare`.
    """
    from server.cli import main as specgate

    compared = Path(folder) / "compare.json"
    compared.unlink(missing_ok=True)  # of an earlier check
    try:
        return specgate(["bench", "compare", "--out", folder, *words])
    finally:
        if compared.is_file():
            comparison = json.loads(compared.read_text("utf-8"))
            rows = [row_of(cell) for cell in comparison["results"]]
            Path(result).write_text(json.dumps({"rows": rows, "problems": []}), "utf-8")


def row_of(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """A result of the comparison, as a row of the report."""
    row = {
        "proposer": comparison["method"],
        "streams": comparison["concurrency"],
        "side": comparison["side"],
        "tokens/s": comparison["tokens_per_s"],
        "ms a step": comparison["step_ms"],
        "tokens a step": comparison["tokens_per_step"],
    }
    if comparison["side"] != comparison["base"]:
        row["ratio"] = comparison["ratio"]["median"]
        row["from"], row["to"] = comparison["ratio"]["low"], comparison["ratio"]["high"]
    return row


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
