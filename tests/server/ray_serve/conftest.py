"""No test here fails because the machine is busy."""

import pytest

from tests.server.fleet.patience import be_patient


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas and peers may take minutes."""
    be_patient(monkeypatch)
