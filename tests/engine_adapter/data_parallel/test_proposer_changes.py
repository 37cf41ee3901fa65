"""Proposers are loaded and unloaded at all engines or at none."""

import asyncio

import pytest
from structlog.testing import capture_logs

from engine_adapter.seam.errors import EngineConfigError, EngineDead, ProposerRefused
from engine_adapter.seam.types import SpecMethod
from tests.engine_adapter.data_parallel.conftest import StartFleet
from tests.engine_adapter.data_parallel.fleet import back, end, fails_once, kills
from tests.engine_adapter.fake.harness import make_request
from tests.server.gateway import eventually

OTHER = {"name": "other", "method": "ngram", "num_speculative_tokens": 2}


async def test_a_proposer_is_loaded_and_unloaded_everywhere(start: StartFleet) -> None:
    fleet = await start()
    info = await fleet.engine.load_proposer(OTHER)
    assert (info.name, info.num_speculative_tokens) == ("other", 2)
    assert "other" in fleet.names(0)
    assert "other" in fleet.names(1)
    assert "other" in [shown.name for shown in await fleet.engine.proposers()]
    await fleet.engine.unload_proposer("other")
    assert "other" not in fleet.names(0) + fleet.names(1)


@pytest.mark.parametrize("refuses", [0, 1])
async def test_a_load_that_one_engine_refuses_is_undone(start: StartFleet, refuses: int) -> None:
    fleet = await start(own={refuses: {"fake_fail_load": "bad weights"}})
    with pytest.raises(EngineConfigError, match="bad weights"):
        await fleet.engine.load_proposer(OTHER)
    assert "other" not in fleet.names(0) + fleet.names(1)
    assert fleet.engine.failures == (None, None)


async def test_a_load_in_which_an_engine_dies_is_undone(start: StartFleet) -> None:
    fleet = await start(own={1: {"fake_die_at_call": "load"}})
    with pytest.raises(EngineDead):
        await fleet.engine.load_proposer(OTHER)
    assert "other" not in fleet.names(0) + fleet.names(1)
    assert not fleet.engine._ranks[1].missed


async def test_while_one_engine_loads_the_proposer_is_shown_so_and_no_other_change_begins(
    start: StartFleet,
) -> None:
    fleet = await start(own={1: {"fake_load_s": 60}})
    loading = asyncio.create_task(fleet.engine.load_proposer(OTHER))
    await eventually(lambda: "other" in fleet.names(0))
    assert "other" not in [info.name for info in fleet.engine.info.proposers]
    (shown,) = [info for info in await fleet.engine.proposers() if info.name == "other"]
    assert shown.state == "loading"
    with pytest.raises(ProposerRefused) as caught:
        await fleet.engine.unload_proposer("suffix")
    assert caught.value.code == "load_in_progress"
    await end([loading])


async def test_an_unload_that_one_engine_refuses_is_undone(start: StartFleet) -> None:
    fleet = await start()
    fails_once(fleet.ranks[1], "unload_proposer", ProposerRefused("proposer_in_use", "busy"))
    with pytest.raises(ProposerRefused, match="busy"):
        await fleet.engine.unload_proposer("ngram")
    assert set(fleet.names(0)) == set(fleet.names(1)) == {"ngram", "suffix", "prediction"}
    (ngram,) = [info for info in fleet.ranks[0].info.proposers if info.name == "ngram"]
    assert (ngram.method, ngram.num_speculative_tokens) == ("ngram", 3)


async def test_an_unknown_proposer_is_refused_as_by_one_engine(start: StartFleet) -> None:
    fleet = await start()
    with pytest.raises(ProposerRefused) as caught:
        await fleet.engine.unload_proposer("other")
    assert caught.value.code == "proposer_not_found"
    with pytest.raises(ProposerRefused, match="loaded already"):
        await fleet.engine.load_proposer({**OTHER, "name": "ngram"})
    assert set(fleet.names(0)) == {"ngram", "suffix", "prediction"}


async def test_an_engine_that_is_back_gets_loads_and_unloads_in_order(start: StartFleet) -> None:
    fleet = await start()
    kills(fleet, 1)
    await fleet.engine.unload_proposer("suffix")
    await fleet.engine.load_proposer({**OTHER, "name": "suffix"})
    await fleet.engine.load_proposer(OTHER)
    await fleet.engine.unload_proposer("ngram")
    await back(fleet, 1)
    assert fleet.names(0) == fleet.names(1) == ["prediction", "suffix", "other"]
    (suffix,) = [info for info in fleet.ranks[1].info.proposers if info.name == "suffix"]
    assert suffix.method == "ngram"


async def test_an_engine_serves_only_when_it_has_what_it_missed(start: StartFleet) -> None:
    fleet = await start()
    kills(fleet, 1)
    await fleet.engine.load_proposer(OTHER)
    fails_once(fleet.ranks[1], "load_proposer", EngineConfigError("proposer", "no disk"))
    with capture_logs() as logs:
        fleet.ranks[1]._lifetime._restart()
        await eventually(lambda: any(line["event"] == "engine_behind" for line in logs))
        assert "the load of other" in str(fleet.engine.failures[1])
        tasks = [
            fleet.begin(make_request(f"r{i}", SpecMethod("other", 2), prompt=(i, 1), max_tokens=5))
            for i in range(4)
        ]
        assert all(await asyncio.gather(*tasks))
        await eventually(lambda: fleet.engine.failures[1] is None)
    assert "other" in fleet.names(1)
