"""Warnings that come often."""

from structlog.testing import capture_logs

from server.telemetry.repeated_warning import RepeatedWarning


def test_a_repeated_warning_is_few_lines_that_count() -> None:
    warning = RepeatedWarning("gone", every_s=10)
    with capture_logs() as lines:
        warning.add(0, peer="a")
        for i in range(100):
            warning.add(1 + i / 100, peer="b")
        warning.flush(9)
        warning.flush(10)
        warning.flush(30)
        warning.add(31, peer="c")
    assert [(line["peer"], line["count"]) for line in lines] == [("a", 1), ("b", 100), ("c", 1)]
    assert {line["event"] for line in lines} == {"gone"}
