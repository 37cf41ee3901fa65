"""A fleet in the test's own process; no test here fails because the machine is busy."""

from collections.abc import AsyncIterator

import pytest

from server.ray_serve import attendance, remote_replica
from tests.server.conftest import StartGateway
from tests.server.fleet.patience import be_patient
from tests.server.ray_serve.house import NAMES, House


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas and peers may take minutes."""
    be_patient(monkeypatch)


@pytest.fixture
async def house(start: StartGateway, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    """Four replicas that look often for the fleet's next process."""
    monkeypatch.setattr(remote_replica, "LOOK_S", 0.02)
    monkeypatch.setattr(attendance, "RETRY_S", 0.02)
    made = House()
    for name in NAMES:
        await made.add(name, await start())
    yield made
    made.dead.clear()
    await made.close()
