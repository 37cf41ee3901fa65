"""Time for a busy machine: no test is about how long an answer may take by default."""

import pytest

LONG_S = 300.0


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas may take minutes to be reached and to answer, unless a test says otherwise."""
    for limit in (
        *("http_fleet.CONNECT_TIMEOUT_S", "http_fleet.CALL_S"),
        *("peers.PEER_ANSWER_S", "view.VIEW_ANSWER_S"),
    ):
        monkeypatch.setattr(f"server.fleet.{limit}", LONG_S)
