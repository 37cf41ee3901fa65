"""The result files of a measurement."""

import json
from pathlib import Path

from benchmarks import report


def test_a_result_file_is_replaced_as_one(tmp_path: Path) -> None:
    """A file that was opened before it is written again is read as it was, to its end."""
    report.write(tmp_path, "gain", {}, [1], ["one row"])
    with (tmp_path / "gain.json").open() as figures, (tmp_path / "gain.md").open() as table:
        report.write(tmp_path, "gain", {}, [1, 2], ["one row", "another"])
        assert json.load(figures)["results"] == [1]
        assert table.read() == "one row\n"
    assert json.loads((tmp_path / "gain.json").read_text())["results"] == [1, 2]
    assert {path.name for path in tmp_path.iterdir()} == {"gain.json", "gain.md"}
