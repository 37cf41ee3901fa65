"""Loading and unloading, against a process of two ranks with given answers."""

import json
from typing import Any

import pytest

from demo import model_path
from engine_adapter.proposers.contract import TargetSizes
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.registries.proposer_registry import ProposerRegistry
from engine_adapter.seam.errors import EngineConfigError, EngineDead, EngineError, ProposerRefused
from engine_adapter.vllm_engine.gateway.hot_load import (
    load_proposer,
    smoke_test_proposers,
    try_target,
    unload_proposer,
)
from engine_adapter.vllm_engine.wire import LoadState

SIZES = TargetSizes(16, 96)
LOOKUP = {"name": "lookup", "method": "ngram"}


class Ranks:
    """An engine process of two ranks; `states` are its answers, in order.

    `faults` are its answers to a smoke test, of a load or of all proposers; `media_faults` those to
    a trial of a modality.
    """

    def __init__(
        self,
        *states: tuple[str, str],
        dies_at: str = "",
        faults: tuple[Any, Any] = ("", ""),
        media_faults: dict[str, tuple[str, str]] | None = None,
    ) -> None:
        self.states = list(states)
        self.dies_at = dies_at
        self.faults = faults
        self.media_faults = media_faults or {}
        self.calls: list[str] = []

    async def call(self, method: str, *args: Any) -> Any:
        return await self.collective_rpc(method)

    async def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        self.calls.append(method.removeprefix("specgate_"))
        if self.calls[-1] == self.dies_at:
            raise EngineDead("dead")
        if method == "specgate_load_state":
            return [[state, f"why {i}"] for i, state in enumerate(self.states.pop(0))]
        if method.startswith(("specgate_smoke_test", "specgate_try_text")):
            return list(self.faults)
        if method == "specgate_try_media":
            return list(self.media_faults.get(args[0], ("", "")))
        return [{"lookup": (7, 0)}, {"lookup": (7, 0)}]


@pytest.fixture
def registry() -> ProposerRegistry:
    return ProposerRegistry(parse_specs([{"name": "ngram"}]), capacity=5)


async def test_a_load_is_installed_when_the_last_rank_is_ready(registry: ProposerRegistry) -> None:
    ranks = Ranks(
        (LoadState.READING, LoadState.READING),
        (LoadState.READY, LoadState.READING),
        (LoadState.READY, LoadState.READY),
    )
    info = await load_proposer(ranks, registry, LOOKUP, SIZES)
    assert ranks.calls == [
        "load",
        *["load_state"] * 3,
        "smoke_test_load",
        "install",
        "add_proposer",
    ]
    assert (info.name, info.weights_bytes) == ("lookup", 14)
    assert [spec.name for spec in registry.specs] == ["ngram", "lookup"]
    assert registry.loading is None


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (LoadState.REFUSED, EngineConfigError),
        (LoadState.NO_ROOM, ProposerRefused),
        (LoadState.FAILED, EngineError),
    ],
)
async def test_a_failure_on_one_rank_unloads_it_on_all(
    registry: ProposerRegistry, state: str, error: type[Exception]
) -> None:
    ranks = Ranks((LoadState.READING, state), (LoadState.READY, state))
    with pytest.raises(error, match="why 1"):
        await load_proposer(ranks, registry, LOOKUP, SIZES)
    assert ranks.calls == ["load", "load_state", "load_state", "unload"]
    assert [spec.name for spec in registry.specs] == ["ngram"]
    assert registry.loading is None


async def test_a_proposer_that_cannot_draft_on_a_rank_is_unloaded_on_all(
    registry: ProposerRegistry,
) -> None:
    ranks = Ranks((LoadState.READY, LoadState.READY), faults=("", "RuntimeError: no"))
    with pytest.raises(EngineConfigError, match=r"method ngram cannot draft .*: RuntimeError: no"):
        await load_proposer(ranks, registry, LOOKUP, SIZES)
    assert ranks.calls == ["load", "load_state", "smoke_test_load", "unload"]
    assert [spec.name for spec in registry.specs] == ["ngram"]


async def test_a_start_is_refused_with_every_proposer_that_failed_on_some_rank() -> None:
    specs = parse_specs([{"name": name, "method": "ngram"} for name in ("one", "two", "three")])
    await smoke_test_proposers(Ranks(faults=({}, {})), specs)
    with pytest.raises(EngineConfigError) as caught:
        await smoke_test_proposers(
            Ranks(faults=({"three": "A"}, {"three": "B", "one": "C"})), specs
        )
    assert caught.value.setting == "proposer"
    said = "the method ngram cannot draft for this target"
    assert caught.value.message == f"one: {said}: C; three: {said}: A"


@pytest.mark.parametrize("at", ["load", "load_state", "smoke_test_load", "install", "add_proposer"])
async def test_nothing_is_loaded_if_the_process_dies(registry: ProposerRegistry, at: str) -> None:
    with pytest.raises(EngineDead):
        await load_proposer(
            Ranks((LoadState.READY, LoadState.READY), dies_at=at), registry, LOOKUP, SIZES
        )
    assert [spec.name for spec in registry.specs] == ["ngram"]
    assert registry.loading is None


async def test_weights_that_do_not_fit_never_reach_the_process(registry: ProposerRegistry) -> None:
    ranks = Ranks()
    with pytest.raises(EngineConfigError, match="the folder /nowhere does not exist") as caught:
        await load_proposer(
            ranks, registry, {"name": "heads", "method": "medusa", "model": "/nowhere"}, SIZES
        )
    assert caught.value.field == "model"
    assert ranks.calls == []
    heads = {"name": "heads", "method": "medusa", "model": str(model_path("medusa"))}
    config = json.loads((model_path("target") / "config.json").read_text())
    sizes = TargetSizes(config["hidden_size"], config["vocab_size"])
    with pytest.raises(EngineConfigError, match="at most 4") as caught:
        await load_proposer(ranks, registry, {**heads, "num_speculative_tokens": 5}, sizes)
    assert caught.value.field == "num_speculative_tokens"
    assert ranks.calls == []


async def test_an_unloaded_proposer_leaves_the_registry_first(
    registry: ProposerRegistry,
) -> None:
    ranks = Ranks(dies_at="unload")
    with pytest.raises(EngineDead):
        await unload_proposer(ranks, registry, "ngram")
    assert registry.specs == ()
    ranks = Ranks()
    registry.add(parse_specs([LOOKUP])[0], [])
    await unload_proposer(ranks, registry, "lookup")
    assert ranks.calls == ["remove_proposer", "unload"], "no plan may name it any more"


async def test_a_target_that_runs_on_every_rank_is_served() -> None:
    ranks = Ranks()
    await try_target(ranks, "org/m")
    assert ranks.calls == ["try_text", "try_media", "try_media", "try_media"]


async def test_a_target_that_fails_on_one_rank_ends_the_start() -> None:
    with pytest.raises(EngineConfigError) as caught:
        await try_target(Ranks(faults=("", "RuntimeError: head dim 32")), "org/m")
    assert caught.value.setting == "model"
    assert "org/m cannot run a step on this machine: RuntimeError: head" in caught.value.message


@pytest.mark.parametrize(
    ("modality", "noun"), [("image", "picture"), ("audio", "recording"), ("video", "video")]
)
async def test_an_item_that_fails_on_one_rank_ends_the_start_with_a_remedy(
    modality: str, noun: str
) -> None:
    with pytest.raises(EngineConfigError) as caught:
        await try_target(Ranks(media_faults={modality: ("", "RuntimeError: stride")}), "org/m")
    assert caught.value.setting == "model"
    assert caught.value.message == (
        f"org/m cannot read a {noun} on this machine: RuntimeError: stride. With "
        f"--limit-mm-per-prompt '{{\"{modality}\": 0}}' it is served without."
    )
