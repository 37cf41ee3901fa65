"""The measured servers: Specgate, the bare app, and with vLLM's front end stock vLLM too.

All run at the same time; only one of them has load. Each engine replays, so that no CPU time goes
into a model: the fake engine itself, vLLM's front ends with `benchmarks.gateway.stub_core`.
"""

import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gateway.client import Load
from benchmarks.gateway.recording import RecordedStream, record, write
from benchmarks.servers import NAME, ServerGroup, shared_flags
from benchmarks.targets import target_path
from server.http.descriptors import raise_limit

BARE, SPECGATE, STOCK = "bare", "specgate", "stock"
"""The sides. `bare` is the base of the others."""

PROPOSER = "replayed"

MAX_STREAMS = 4096
"""At a time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request asks for: `tokens` tokens, `delta` of them in each event after the first."""

    tokens: int
    delta: int


@dataclass(frozen=True, slots=True)
class Setup:
    """How the servers of one measurement are started.

    Attributes:
        engine: `fake` or `vllm`.
        answers: those that will be asked for. vLLM's servers have one delta for all.
        step_ms: between the deltas of a stream; 0 is as fast as they can be sent.
        folder: for the servers' logs.
        profile: where Specgate's profile is written when it stops, if anywhere.
    """

    engine: str
    answers: Sequence[Answer]
    step_ms: float
    folder: Path
    profile: Path | None = None

    @property
    def delta(self) -> int:
        """The largest delta."""
        return max(answer.delta for answer in self.answers)


@dataclass(frozen=True, slots=True)
class Side:
    """A running server.

    Attributes:
        loads: the load of each answer.
        recordings: what it answers.
    """

    name: str
    server: ServerGroup
    loads: Mapping[Answer, Load]
    recordings: Mapping[Answer, RecordedStream]


@asynccontextmanager
async def running_sides(setup: Setup) -> AsyncIterator[list[Side]]:
    """Starts the servers; they end with the block. The bare app sends what Specgate answered."""
    setup.folder.mkdir(parents=True, exist_ok=True)
    # Every stream needs a descriptor here and in its server, which inherits the limit.
    raise_limit()
    with ExitStack() as stack:

        async def start(name: str, command: Sequence[str], path: str) -> ServerGroup:
            group = ServerGroup(name, command, setup.folder / f"{name}.log")
            server = stack.enter_context(group)
            await server.wait_until_answering(path)
            return server

        specgate = await start(SPECGATE, _specgate_command(setup), "/ready")
        recorded = await _recordings(specgate.port, setup, names_method=setup.engine == "fake")
        path = setup.folder / "recordings.json"
        write(path, list(recorded.values()))
        words = [str(path), str(setup.step_ms)]
        bare = await start(BARE, _module("benchmarks.gateway.bare_app", *words), "/ready")
        sides = [_side(BARE, bare, recorded), _side(SPECGATE, specgate, recorded)]
        if setup.engine == "vllm":
            stock = await start(STOCK, _stock_command(setup), "/health")
            answers = await _recordings(stock.port, setup, names_method=False)
            sides.append(_side(STOCK, stock, answers))
        yield sides


def _side(name: str, server: ServerGroup, recorded: Mapping[Answer, RecordedStream]) -> Side:
    loads = {
        answer: Load(server.port, stream.body, len(stream.events))
        for answer, stream in recorded.items()
    }
    return Side(name, server, loads, recorded)


async def _recordings(
    port: int, setup: Setup, *, names_method: bool
) -> dict[Answer, RecordedStream]:
    return {
        answer: await record(port, _body(answer, names_method=names_method))
        for answer in setup.answers
    }


def _body(answer: Answer, *, names_method: bool) -> bytes:
    body: dict[str, Any] = {
        "model": NAME,
        "messages": [{"role": "user", "content": "Why is the sky blue? Answer in one paragraph."}],
        "stream": True,
        "max_tokens": answer.tokens,
        "temperature": 0,
    }
    if names_method and answer.delta > 1:
        k = answer.delta - 1
        body["spec_decode"] = {"proposer": PROPOSER, "num_speculative_tokens": k}
    return json.dumps(body).encode()


def _specgate_command(setup: Setup) -> list[str]:
    words = ["serve", target_path("demo"), "--engine", setup.engine, "--no-access-log"]
    words += ["--spec-method", "none"]
    words += ["--max-engine-sequences", str(MAX_STREAMS)]  # no request waits for another
    if setup.engine == "vllm":
        return [*_stub(setup, "specgate"), *words, *shared_flags()]
    options = {"fake_replay": True, "fake_step_ms": setup.step_ms}
    words += ["--engine-args", json.dumps(options), *shared_flags()]
    if setup.delta > 1:
        k = setup.delta - 1
        proposer = {"name": PROPOSER, "method": "ngram", "num_speculative_tokens": k}
        words += ["--proposer", json.dumps(proposer)]
    if setup.profile is None:
        return _module("server.cli", *words)
    return _module("benchmarks.gateway.profiled", str(setup.profile), *words)


def _stock_command(setup: Setup) -> list[str]:
    words = [*_stub(setup, "stock"), "--model", target_path("demo"), "--no-async-scheduling"]
    return [*words, "--disable-uvicorn-access-log", *shared_flags()]


def _stub(setup: Setup, front_end: str) -> list[str]:
    words = (str(setup.step_ms), str(setup.delta), front_end)
    return _module("benchmarks.gateway.stub_core", *words)


def _module(name: str, *words: str) -> list[str]:
    return [sys.executable, "-P", "-m", name, *words]
