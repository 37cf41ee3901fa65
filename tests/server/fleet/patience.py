"""Time for a busy machine: no test is about how long an answer may take by default."""

import pytest

from server.fleet.coordinator import switch_fleet

LONG_S = 300.0


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas may take minutes to be reached and to answer, unless a test says otherwise."""
    monkeypatch.setattr("server.fleet.http_replica.CONNECT_TIMEOUT_S", LONG_S)
    monkeypatch.setattr("server.fleet.peers.PEER_ANSWER_S", LONG_S)
    monkeypatch.setattr("server.fleet.view.VIEW_ANSWER_S", LONG_S)
    monkeypatch.setattr("server.ray_serve.fleet.CALL_S", LONG_S)
    defaults = switch_fleet.__kwdefaults__
    assert defaults is not None
    for limit in ("call_s", "lease_s"):
        monkeypatch.setitem(defaults, limit, LONG_S)
