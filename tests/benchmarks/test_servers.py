"""What is started: the same model, arguments and proposer on every side."""

from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import Servers, proposer_fields, speculative_config
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import parse_spec
from tests.benchmarks.sides import HEADS, NGRAM


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The commands that would have been run, by side."""
    seen: dict[str, list[str]] = {}

    @asynccontextmanager
    async def running(self: Servers, name: str, command: list[str], *_: Any, **__: Any) -> Any:
        seen[name] = command
        yield None

    monkeypatch.setattr(Servers, "_running", running)
    return seen


async def test_stock_and_specgate_get_the_same_arguments(
    commands: dict[str, list[str]], tmp_path: Path
) -> None:
    host = Servers(tmp_path)
    async with host.stock("model", NGRAM), host.specgate("one", "model", [NGRAM]):
        pass
    stock, one = commands["stock"], commands["one"]
    shared = stock[stock.index("--served-model-name") : stock.index("--speculative-config")]
    assert len(shared) > 10
    assert " ".join(shared) in " ".join(one)
    assert "--no-async-scheduling" in stock


async def test_stock_without_a_proposer_does_not_speculate(
    commands: dict[str, list[str]], tmp_path: Path
) -> None:
    async with Servers(tmp_path).stock("model", None):
        assert "--speculative-config" not in commands["stock"]


def test_vllm_gets_a_proposer_without_what_is_specgates_own() -> None:
    fields = {"name": "d", "method": "draft_model", "num_speculative_tokens": 4, "model": "d"}
    spec = parse_spec(fields)
    assert speculative_config(spec) == {
        "method": "draft_model",
        "num_speculative_tokens": 4,
        "model": "d",
    }
    assert speculative_config(NGRAM)["prompt_lookup_max"] == 5


@pytest.mark.parametrize("spec", [NGRAM, HEADS])
def test_specgate_gets_the_proposer_that_was_read(spec: ProposerSpec) -> None:
    assert parse_spec(proposer_fields(spec)) == spec


async def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"one did not start:\n.*proposer"):
        async with Servers(tmp_path, "fake").specgate("one", "model", [HEADS, HEADS]):
            pass
