"""Real engines, started once for all tests that need them, and parts of one without the rest."""

import os
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import psutil
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry
from transformers import AutoTokenizer

from demo import model_path
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.factory import create_engine
from engine_adapter.vllm_engine.gateway import arguments
from engine_adapter.vllm_engine.patches.model_inspection import patch_model_inspection
from tests.engine_adapter.vllm_engine.support.dispatch_harness import DispatchHarness
from tests.engine_adapter.vllm_engine.support.live import Live, Prompt, Recorder, Stock, start_stock
from tests.engine_adapter.vllm_engine.support.processes import fork_engines

TARGET = str(model_path("target"))
CONTEXT = 1024

PROPOSERS: list[dict[str, Any]] = [
    {"name": "ngram", "num_speculative_tokens": 5},
    {"name": "suffix", "num_speculative_tokens": 8},
    {
        "name": "draft",
        "method": "draft_model",
        "model": str(model_path("draft")),
        "num_speculative_tokens": 4,
    },
    {"name": "medusa", "model": str(model_path("medusa")), "num_speculative_tokens": 4},
    {
        "name": "mlp",
        "method": "mlp_speculator",
        "model": str(model_path("mlp-speculator")),
        "num_speculative_tokens": 4,
    },
    {"name": "eagle", "model": str(model_path("eagle")), "num_speculative_tokens": 4},
    {"name": "eagle3", "model": str(model_path("eagle3")), "num_speculative_tokens": 4},
    # The target as its own draft: every token that it drafts can be accepted, so a rejected one is
    # a mistake in its KV.
    {"name": "self", "method": "draft_model", "model": TARGET, "num_speculative_tokens": 5},
    {"name": "cascade", "members": ["ngram", "mlp", "self"], "num_speculative_tokens": 5},
    {
        "name": "chain",
        "members": ["suffix", "eagle3", "ngram"],
        "num_speculative_tokens": 8,
    },
    {"name": "grammar", "num_speculative_tokens": 5},
    {
        "name": "forced-first",
        "method": "cascade",
        "members": ["grammar", "self"],
        "num_speculative_tokens": 5,
    },
]
FOR_CONSTRAINTS = ("grammar", "forced-first")
"""Proposers for requests with structured output."""
CHOICES: dict[str, int] = {"none": 0} | {
    fields["name"]: fields["num_speculative_tokens"]
    for fields in PROPOSERS
    if fields["name"] not in FOR_CONSTRAINTS
}
"""What any request can choose: names, each with its k."""

COMMON: dict[str, Any] = {"dtype": "float32", "max_model_len": CONTEXT, "max_num_seqs": 32}


async def start(
    proposers: Sequence[dict[str, Any]],
    target: str = TARGET,
    lora_modules: Mapping[str, str] | None = None,
    **arguments: Any,
) -> Live:
    """Starts an engine, by default on the demo target; `arguments` are vLLM's."""
    if os.environ.get("ASYNC_SCHEDULING"):  # make test-async
        arguments = {"async_scheduling": True, **arguments}
    recorder, registry = Recorder(), CollectorRegistry()
    config = EngineConfig(
        target,
        "demo",
        parse_specs(proposers),
        arguments=COMMON | arguments,
        lora_modules=lora_modules or {},
    )
    engine = create_engine("vllm", config, registry, recorder)
    fork_engines()
    before = child_processes()
    await engine.start(lambda line: None)
    return Live(engine, recorder, registry, frozenset(child_processes() - before))


@contextmanager
def planning_at_random(*, cheats: bool = False, early: bool = False) -> Iterator[None]:
    """Engines that start in the block have a `RandomPlanScheduler`.

    Args:
        cheats: their dispatch cuts the drafts of `CHEAT`: see `cheating`.
        early: asynchronous ones draft as on a device: see `early_on_cpu`.
    """
    # The imports take vLLM's, which a run without engines need not wait for.
    from tests.engine_adapter.vllm_engine.support import cheating, early_on_cpu, random_plans

    scheduler = cheating.CheatingScheduler if cheats else random_plans.RandomPlanScheduler
    late: type = (
        cheating.CheatingAsyncScheduler if cheats else random_plans.RandomPlanAsyncScheduler
    )
    if early:
        late = early_on_cpu.EarlyDraftScheduler
    built = arguments.engine_args

    def replaced(*args: Any) -> Any:
        made = built(*args)
        made.scheduler_cls = late if made.async_scheduling else scheduler
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "engine_args", replaced)
        yield


def child_processes() -> set[psutil.Process]:
    """The processes that this one has started, and theirs."""
    return set(psutil.Process().children(recursive=True))


@pytest.fixture(autouse=True)
def models_are_inspected_here(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in tests without an engine, which make configurations of models."""
    if request.node.get_closest_marker("needs_vllm"):
        registry = import_module("vllm.model_executor.models.registry")
        monkeypatch.setattr(registry, "_run_in_subprocess", registry._run_in_subprocess)
        patch_model_inspection()


THINKING = {"reasoning_start_str": "<|assistant|>", "reasoning_end_str": "<|system|>"}
"""Every answer of a chat is reasoning up to a mark that the demo does not write by itself."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def live() -> AsyncIterator[Live]:
    """An engine with every kind of proposer and room to spare."""
    started = await start(PROPOSERS, kv_cache_memory_bytes=1 << 30, reasoning_config=THINKING)
    yield started
    await started.engine.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cramped() -> AsyncIterator[Live]:
    """The same with 22 KV blocks and 256 tokens a step: preemption and chunked prefill.

    Requests without a priority come and are preempted in the order in which they arrived.
    """
    started = await start(
        PROPOSERS,
        num_gpu_blocks_override=22,
        max_num_batched_tokens=320,
        max_num_seqs=16,
        scheduling_policy="priority",
        reasoning_config=THINKING,
    )
    yield started
    await started.engine.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stock() -> AsyncIterator[Stock]:
    """vLLM's own engine on the same target, without speculation."""
    llm = start_stock(TARGET, **COMMON)
    yield Stock(llm)
    llm.shutdown()


@pytest.fixture(scope="session")
def prompts() -> list[Prompt]:
    """Twenty-four prompts of 20 to 700 tokens; several share long beginnings."""
    from demo.prompts import load_prompts

    tokenizer: Any = AutoTokenizer.from_pretrained(TARGET)
    rng = random.Random(5)
    loaded = load_prompts()
    chats = [[p for p in loaded if p.kind == kind][:8] for kind in ("quote", "free")]
    ids = [
        tuple(
            tokenizer.apply_chat_template(
                prompt.messages, add_generation_prompt=True, return_dict=False
            )
        )
        for kind in chats
        for prompt in kind
    ]
    long = [(ids[i] + ids[i + 1] + ids[i + 2])[:700] for i in range(4)]
    shared = [long[i][: 128 * rng.randint(1, 3)] + ids[8 + i] for i in range(4)]
    return [*ids, *long, *shared]


@pytest.fixture
def harness() -> DispatchHarness:
    """A fresh dispatch; importing it imports vLLM."""
    return DispatchHarness(import_module("engine_adapter.vllm_engine.worker.dispatch"))
