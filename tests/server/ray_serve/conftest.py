"""A fleet in the test's own process; no test here fails because the machine is busy."""

from collections.abc import AsyncIterator

import pytest

from tests.server.conftest import StartGateway
from tests.server.fleet.patience import LONG_S, be_patient
from tests.server.ray_serve.house import NAMES, House


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas may take minutes."""
    be_patient(monkeypatch)
    monkeypatch.setattr("server.ray_serve.fleet.CALL_S", LONG_S)
    monkeypatch.setattr("server.ray_serve.fleet.START_S", 0.0)


@pytest.fixture
async def house(start: StartGateway) -> AsyncIterator[House]:
    """Four replicas."""
    made = House()
    for name in NAMES:
        await made.add(name, await start())
    yield made
    await made.close()
