"""Time for a busy machine: no test here is about how long an answer may take."""

import pytest


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers may take minutes to answer."""
    monkeypatch.setattr("server.fleet.peers.ANSWER_S", 300.0)
