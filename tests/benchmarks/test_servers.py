"""Server commands: every side has the same model, arguments and proposer."""

import dataclasses
import sys
import time
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import servers
from benchmarks.servers import ServerLauncher, proposer_fields, speculative_config
from benchmarks.sides import STOCK_METHODS
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import get_method, parse_spec
from tests.benchmarks.fake_systems import HEADS, NGRAM


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The commands that would have been run, by system name."""
    seen: dict[str, list[str]] = {}

    @asynccontextmanager
    async def running(
        self: ServerLauncher,
        name: str,
        command: list[str],
        health: str,
        without: Sequence[str] = (),
        **_: Any,
    ) -> Any:
        seen[name] = command
        seen[f"{name}, without"] = list(without)
        yield None

    monkeypatch.setattr(ServerLauncher, "_running", running)
    return seen


async def test_stock_and_specgate_get_the_same_arguments(
    commands: dict[str, list[str]], tmp_path: Path
) -> None:
    launcher = ServerLauncher(tmp_path)
    async with launcher.stock("model", NGRAM), launcher.specgate("one", "model", [NGRAM]):
        pass
    stock, one = commands["stock"], commands["one"]
    shared = stock[stock.index("--served-model-name") : stock.index("--speculative-config")]
    assert len(shared) > 10
    assert " ".join(shared) in " ".join(one)
    assert "--no-async-scheduling" in stock


async def test_on_a_gpu_servers_have_graphs_and_stock_its_own_choices(
    commands: dict[str, list[str]], tmp_path: Path
) -> None:
    launcher = ServerLauncher(
        tmp_path, arguments={"dtype": "bfloat16"}, graphs=True, stock_defaults=True
    )
    async with launcher.stock("model", NGRAM), launcher.specgate("one", "model", [NGRAM]):
        pass
    for name in "stock", "one":
        assert "--enforce-eager" not in commands[name]
        assert commands[name][commands[name].index("--dtype") + 1] == "bfloat16"
        assert commands[name].count("--dtype") == 1
    assert "--no-async-scheduling" not in commands["stock"]
    assert commands["stock, without"] == ["VLLM_ENABLE_V1_MULTIPROCESSING"]
    assert commands["one, without"] == []


async def test_stock_without_a_proposer_does_not_speculate(
    commands: dict[str, list[str]], tmp_path: Path
) -> None:
    async with ServerLauncher(tmp_path).stock("model", None):
        assert "--speculative-config" not in commands["stock"]


def test_vllm_gets_a_proposer_without_specgates_own_options() -> None:
    fields = {"name": "d", "method": "draft_model", "num_speculative_tokens": 4, "model": "d"}
    spec = parse_spec(fields)
    assert speculative_config(spec) == {
        "method": "draft_model",
        "num_speculative_tokens": 4,
        "model": "d",
        "use_heterogeneous_vocab": False,  # vLLM has this option too
    }
    assert speculative_config(NGRAM)["prompt_lookup_max"] == 5


@pytest.mark.needs_vllm
@pytest.mark.parametrize("method", sorted(STOCK_METHODS))
def test_vllm_knows_each_field_of_a_method_that_it_has(method: str) -> None:
    from vllm.config import SpeculativeConfig

    spec = ProposerSpec("p", method, 4, "m", get_method(method).options)
    known = {field.name for field in dataclasses.fields(SpeculativeConfig)}
    assert set(speculative_config(spec)) <= known


@pytest.mark.parametrize("spec", [NGRAM, HEADS])
def test_proposer_fields_parse_back_to_the_same_spec(spec: ProposerSpec) -> None:
    assert parse_spec(proposer_fields(spec)) == spec


async def test_a_server_that_fails_to_start_is_reported_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"one did not start:\n.*proposer"):
        async with ServerLauncher(tmp_path, "fake").specgate("one", "model", [HEADS, HEADS]):
            pass


async def test_a_server_that_is_busy_without_requests_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(servers, "START_S", 1)
    monkeypatch.setattr(servers, "IDLE_S", 0.5)
    monkeypatch.setattr(servers, "IDLE_SHARE", 0.0)  # others may hold the cores
    command = [sys.executable, "-c", "while True: pass"]
    with (
        servers.ServerGroup("one", command, tmp_path / "one.log") as process,
        pytest.raises(RuntimeError, match=r"one is idle but uses \d+% of a core"),
    ):
        await process.check_idle()


async def test_a_burst_waits_until_a_server_has_stopped_to_spin(tmp_path: Path) -> None:
    began_s = time.monotonic()
    with servers.ServerGroup("one", spinning(0.6), tmp_path / "one.log"):
        await servers.wait_until_idle()
        assert time.monotonic() - began_s >= 0.6


async def test_a_server_that_spins_on_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(servers, "LONGEST_BREAK_S", 1.0)
    with (
        servers.ServerGroup("one", spinning(60), tmp_path / "one.log"),
        pytest.raises(RuntimeError, match=r"a server is idle but uses \d+% of a core"),
    ):
        await servers.wait_until_idle()


def spinning(seconds: float) -> list[str]:
    """The command of a process that uses a core for some time."""
    code = f"import time\nend = time.monotonic() + {seconds}\n"
    code += "while time.monotonic() < end: pass\ntime.sleep(60)"
    return [sys.executable, "-c", code]


async def test_a_sleeping_server_is_idle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(servers, "IDLE_S", 0.5)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with servers.ServerGroup("one", command, tmp_path / "one.log") as process:
        await process.check_idle()
