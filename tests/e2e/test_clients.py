"""Clients from their own packages against the demo, which must be held to their schemas.

The demo cannot choose a tool sensibly: `tests/server/clients` has loops with scripted answers.
"""

from pathlib import Path

import pytest

from tests.e2e.served import Served
from tests.server.clients.packages import PACKAGES, check_forced, tell

pytestmark = [pytest.mark.engine, pytest.mark.prove]


@pytest.mark.parametrize("client", PACKAGES)
def test_calls_and_formats_become_the_clients_objects(
    served: Served, pytestconfig: pytest.Config, tmp_path: Path, client: str
) -> None:
    served.switch("draft")
    check_forced(client, tell(pytestconfig, tmp_path, client, served.url, "forced"))


def test_json_mode_of_langchain_gives_an_object(
    served: Served, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    told = tell(pytestconfig, tmp_path, "langchain", served.url, "json_mode")
    assert told == {api: {"json_mode": ["dict", "dict"]} for api in ("chat", "responses")}
