"""Where a server that starts finds the method in force, and what it does when no peer answers."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.control.records import SpecMethodBody
from server.control.types import SwitchMode
from server.fleet import peers as module
from server.fleet.addresses import Address
from server.fleet.desired import DesiredState, state_json
from server.fleet.follower import Follower
from server.fleet.http_fleet import HttpFleet, fleet_client
from server.fleet.peers import Peers
from server.fleet.view import view
from tests.server.conftest import StartGateway, StartServer
from tests.server.gateway import Gateway, eventually
from tests.server.threaded import ADMIN_KEY, ThreadedServer

CLOSED = "http://127.0.0.1:9"
STATE = DesiredState(7, "ngram", 3, {"load": {"disable_by_batch_size": 3}})


def state(server: ThreadedServer | Gateway) -> tuple[str, int]:
    now = server.runtime.fleet.state()
    return now.active.spec_method, now.fleet.generation


def peers(*urls: str, **more: Any) -> dict[str, Any]:
    return {"fleet_peers": urls, "fleet_key": ADMIN_KEY, **more}


async def test_a_server_takes_the_highest_generation_of_its_peers(
    start_server: StartServer, start: StartGateway, tmp_path: Path
) -> None:
    files = []
    for generation, method in ((3, "suffix"), (5, "ngram"), (4, "draft")):
        files.append(tmp_path / f"{generation}.json")
        files[-1].write_bytes(state_json(DesiredState(generation, method, 4)))
    urls = [start_server(fleet_state=str(path), fleet_poll_s=0).url for path in files]
    gateway = await start(**peers(CLOSED, *urls))
    assert state(gateway) == ("ngram", 5)
    active = (await gateway.client.get("/v1/spec_method")).json()
    assert active["fleet"] == {
        "generation": 5,
        "switching": False,
        "desired": {
            **{"generation": 5, "spec_method": "ngram", "num_speculative_tokens": 4},
            **{"policies": {}, "revision": 0},
        },
        "lag": None,
    }
    assert active["switches"][0]["fleet_generation"] == 5
    assert active["switches"][0]["reason"] == "as the fleet has it"
    assert active["switches"][0]["mode"] == SwitchMode.NEW_REQUESTS


async def test_a_server_whose_peers_do_not_answer_starts_with_its_own_method(
    start: StartGateway,
) -> None:
    gateway = await start(**peers(CLOSED))
    assert state(gateway) == ("draft", 0)
    assert gateway.state.ready


async def test_a_name_without_an_address_does_not_keep_a_server_from_starting(
    start: StartGateway,
) -> None:
    gateway = await start(**peers("http://nobody.invalid:8000"))
    assert state(gateway) == ("draft", 0)


async def test_a_resolver_that_hangs_keeps_no_server_from_starting_and_is_asked_once(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    answer = asyncio.Event()

    async def hang(*names: object, **_: object) -> list[object]:
        asked.append(names)
        await answer.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", hang)
    monkeypatch.setattr(module, "PEER_ANSWER_S", 0.05)
    gateway = await start(**peers("http://replicas.example:8000", fleet_poll_s=0.02))
    assert state(gateway) == ("draft", 0)
    # Questions continue, and wait for the same lookup.
    (peers_of_it,) = [part for part in gateway.state.fleet_parts if isinstance(part, Peers)]
    for _ in range(3):
        assert await peers_of_it.ask(1) == []
    assert len(asked) == 1
    assert (await gateway.complete(max_tokens=1)).status_code == 200
    answer.set()
    await eventually(lambda: len(asked) > 1)


async def test_a_name_that_no_resolver_takes_does_not_keep_a_server_from_starting(
    start: StartGateway,
) -> None:
    gateway = await start(**peers(f"http://{'a' * 64}.example:8000"))
    assert state(gateway) == ("draft", 0)


FLEET: dict[str, Any] = {
    "generation": 7,
    "switching": False,
    "desired": {"generation": 7, "spec_method": "ngram", "num_speculative_tokens": 3},
    "lag": None,
}
SHOWN: dict[str, Any] = {
    "spec_method": "ngram",
    "num_speculative_tokens": 3,
    "in_flight": {},
    "fleet": FLEET,
    "engine": {"state": "serving", "reason": None},
    "proposers": {},
    "more": ["fields"],
}


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"fleet": None}, "fleet"),
        ({"fleet": {}}, "fleet.generation"),
        ({"fleet": FLEET | {"generation": []}}, "fleet.generation"),
        ({"fleet": FLEET | {"desired": {}}}, "fleet.desired.generation"),
        ({"spec_method": None}, "spec_method"),
        ({"proposers": {"draft": {}}}, "proposers.draft.drafts"),
    ],
)
async def test_a_peer_of_another_version_is_as_one_that_does_not_answer(
    start: StartGateway, changed: dict[str, Any], field: str
) -> None:
    member = (await start()).runtime.fleet
    answer = SHOWN | changed
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=answer))
    peer = "http://127.0.0.1:1"
    peers_of_it = Peers(fleet_client(None, transport), [peer], None)
    follower = Follower(member, peers_of_it.ask, 0)
    assert not await follower.learn()
    assert member.desired is None
    async with fleet_client(None, transport) as client:
        (shown,) = await view(HttpFleet(client, [Address(peer)]))
        assert shown.differs
        assert shown.error == f"answers as another version of Specgate: {field}"
        answer = SHOWN
        (shown,) = await view(HttpFleet(client, [Address(peer)]))
        assert shown.spec_method is not None
        assert shown.spec_method["more"] == ["fields"]
    assert await follower.learn()
    assert member.state().active == SpecMethodBody("ngram", 3)
    await peers_of_it.close()


async def test_a_peer_that_refuses_the_key_counts_as_one_that_does_not_answer(
    start_server: StartServer, start: StartGateway
) -> None:
    url = start_server().url
    gateway = await start(fleet_peers=(url,), fleet_key="wrong")
    assert state(gateway) == ("draft", 0)


async def test_a_method_that_the_server_lacks_leaves_its_own(
    start: StartGateway, tmp_path: Path
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(state_json(DesiredState(7, "elsewhere", 3)))
    gateway = await start(fleet_state=str(path))
    assert state(gateway) == ("draft", 0)
    assert gateway.state.ready


async def test_a_file_gives_method_and_policies(start: StartGateway, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(state_json(STATE))
    gateway = await start(fleet_state=str(path))
    assert gateway.runtime.fleet.desired == STATE
    other = await start()
    loads = [one.runtime.policy_admin.parameters(["load"]) for one in (gateway, other)]
    assert loads[0] != loads[1]


async def test_a_file_that_changes_is_followed(start: StartGateway, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    gateway = await start(fleet_state=str(path), fleet_poll_s=0.02)
    assert state(gateway) == ("draft", 0)
    path.write_bytes(state_json(STATE))
    await eventually(lambda: state(gateway) == ("ngram", 7))
    path.write_bytes(b"{}")
    path.write_bytes(state_json(DesiredState(8, "suffix", 4)))
    await eventually(lambda: state(gateway) == ("suffix", 8))


async def test_a_server_that_missed_a_switch_follows_a_peer(
    start_server: StartServer, start: StartGateway, tmp_path: Path
) -> None:
    path = tmp_path / "state.json"
    peer = start_server(fleet_state=str(path), fleet_poll_s=0.02)
    gateway = await start(**peers(peer.url, fleet_poll_s=0.02))
    assert state(gateway) == ("draft", 0)
    path.write_bytes(state_json(STATE))
    await eventually(lambda: state(gateway) == ("ngram", 7))


async def test_a_file_that_is_not_a_state_changes_nothing(
    start: StartGateway, tmp_path: Path
) -> None:
    path = tmp_path / "state.json"
    path.write_text("{}")
    assert state(await start(fleet_state=str(path))) == ("draft", 0)


async def test_a_server_that_lags_tells_its_peers_what_it_should_have(
    start_server: StartServer, start: StartGateway, tmp_path: Path
) -> None:
    """Between the two that can have the method stands one that cannot."""
    path = tmp_path / "state.json"
    path.write_bytes(state_json(STATE))
    lacking = start_server(
        proposer=[{"name": "suffix"}], spec_method="suffix", fleet_state=str(path)
    )
    assert state(lacking) == ("suffix", 0)
    gateway = await start(**peers(lacking.url))
    assert state(gateway) == ("ngram", 7)
