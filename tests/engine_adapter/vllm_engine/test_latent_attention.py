"""Targets with latent attention (MLA) on a CPU: exact texts under every proposer.

vLLM has two kernels of it for CPUs, both for states of 512 + 64 numbers: one in any dtype, and one
in bfloat16 for CPUs with AMX. The reference is transformers in float32: stock vLLM's rotary
embedding is wrong for these targets on a CPU.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import SpecMethod
from tests.engine_adapter.vllm_engine.architectures.architecture import Architecture
from tests.engine_adapter.vllm_engine.architectures.small_models import write_model
from tests.engine_adapter.vllm_engine.conftest import COMMON
from tests.engine_adapter.vllm_engine.support.accepting import (
    accept_every_first_draft,
    accept_what_matches,
)
from tests.engine_adapter.vllm_engine.support.hidden_amx import hide_amx
from tests.engine_adapter.vllm_engine.support.live import TIE, Prompt
from tests.engine_adapter.vllm_engine.support.plain_model import PlainModel
from tests.engine_adapter.vllm_engine.support.recorded import RecordedEngine, RecordedRequest
from tests.engine_adapter.vllm_engine.support.reference_case import (
    LENGTH,
    METHODS,
    SOME,
    Case,
    proposers_for,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.prove,
    pytest.mark.asyncio(loop_scope="session"),
]

ROUNDED = 0.3
"""The limit of a tie in bfloat16; plain decoding alone is up to 0.15 behind the likeliest."""

CAUGHT = 1.0
"""A wrong token that is accepted is at least this much less likely than the likeliest."""

OWN = SpecMethod("own", 4)
"""The target as its own draft model."""

LATENT: Mapping[str, Any] = {
    "kv_lora_rank": 512,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "head_dim": 64,
    "v_head_dim": 32,
    "num_key_value_heads": 4,
}
EXPERTS: Mapping[str, Any] = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
DENSE: Mapping[str, Any] = {**EXPERTS, "first_k_dense_replace": 2}
"""Rounding may choose other experts, so a target with experts has no limit in bfloat16."""


@dataclass(frozen=True)
class Cell:
    """A target on a kind of CPU.

    Attributes:
        tie: how far a token may be behind the likeliest, in log probability.
    """

    model_type: str
    fields: Mapping[str, Any]
    has_amx: bool = False

    def __str__(self) -> str:
        return f"{self.model_type}{', AMX' if self.has_amx else ''}"

    @property
    def tie(self) -> float:
        return ROUNDED if self.has_amx else TIE


CELLS = (
    Cell("deepseek_v2", {"q_lora_rank": None, **EXPERTS, "topk_method": "group_limited_greedy"}),
    Cell("deepseek_v3", {**EXPERTS, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}),
    Cell("glm4_moe_lite", {**EXPERTS, "n_group": 1}),
    Cell("deepseek_v2", {"q_lora_rank": None, **DENSE}, has_amx=True),
    Cell("deepseek_v3", DENSE, has_amx=True),
)


@dataclass(frozen=True)
class LatentCase(Case):
    """A cell with its engine."""

    cell: Cell = CELLS[0]


@pytest.fixture(scope="module", params=CELLS, ids=str)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LatentCase]:
    cell = request.param
    if cell.has_amx and not torch.cpu._is_amx_tile_supported():
        pytest.skip("the CPU has no AMX")
    folder = tmp_path_factory.mktemp("latent")
    architecture = Architecture(str(cell), cell.model_type, {**LATENT, **cell.fields})
    target = write_model(architecture, folder / "target")
    proposers = proposers_for(target, folder)
    methods = list(METHODS)
    options: dict[str, Any] = {"max_num_batched_tokens": 200, "long_prefill_token_threshold": 100}
    if cell.has_amx:
        options |= {"dtype": "bfloat16"}
    else:
        # Its blocks have 16 tokens, and those of attention at least 32: heads without attention,
        # and a draft model with latent attention.
        proposers = [fields for fields in proposers if fields["name"] not in ("draft", "eagle")]
        methods = [method for method in methods if method.proposer not in ("draft", "eagle")]
        options |= {"block_size": 16}
    proposers.append({"name": OWN.proposer, "method": "draft_model", "model": target})
    methods.append(OWN)
    config = EngineConfig(
        target,
        "latent",
        parse_specs(proposers),
        5,
        COMMON | {"max_num_seqs": 8, "num_gpu_blocks_override": 500} | options,
    )
    engine = RecordedEngine(config, None if cell.has_amx else hide_amx)
    yield LatentCase(engine, PlainModel(target), methods, cell)
    engine.stop()


async def test_texts_are_exact_under_every_proposer(
    case: LatentCase, prompts: list[Prompt]
) -> None:
    rng = random.Random(1)
    some = [prompts[i] for i in SOME]
    texts = await case.stock.greedy(some, LENGTH)
    for _ in range(3):
        got = case.engine.run(case.requests(some, texts, rng, pinned=True))
        assert await case.largest_gap(some, got) < case.cell.tie


async def test_texts_are_exact_under_switches(case: LatentCase, prompts: list[Prompt]) -> None:
    rng = random.Random(2)
    some = [prompts[i] for i in SOME]
    texts = await case.stock.greedy(some, LENGTH)
    got = case.engine.run(case.requests(some, texts, rng, pinned=False), case.random_switches(rng))
    assert await case.largest_gap(some, got) < case.cell.tie
    assert {name for drafts in got.drafts for name, _ in drafts.values()} > {OWN.proposer, "medusa"}


async def test_a_draft_model_has_latent_states_of_its_own(
    case: LatentCase, prompts: list[Prompt]
) -> None:
    """It is the target itself, so its drafts are the target's tokens, but for ties."""
    some = [prompts[i] for i in SOME]
    got = case.engine.run([RecordedRequest(prompt, LENGTH, OWN) for prompt in some])
    counts = [got.accepted(i, OWN.proposer, prompt) for i, prompt in enumerate(some)]
    drafted, accepted = (sum(column) for column in zip(*counts, strict=True))
    assert accepted > (0.8 if case.cell.has_amx else 0.99) * drafted


async def test_texts_are_exact_after_preemption(case: LatentCase, prompts: list[Prompt]) -> None:
    rng = random.Random(5)
    some = [prompts[i] for i in SOME[:4]]
    texts = await case.stock.greedy(some, LENGTH)
    requests = case.requests(some, texts, rng, pinned=True)
    preemptions, blocks = 0, 500
    while not preemptions:
        blocks = blocks * 4 // 5
        got = case.engine.run(requests, blocks=blocks)
        assert await case.largest_gap(some, got) < case.cell.tie
        preemptions = got.preemptions


async def test_a_wrong_draft_that_is_accepted_is_caught(
    case: LatentCase, prompts: list[Prompt]
) -> None:
    some = [prompts[i] for i in SOME]
    requests = [RecordedRequest(prompt, LENGTH, SpecMethod("medusa", 4)) for prompt in some]
    case.engine.call(accept_every_first_draft)
    try:
        got = case.engine.run(requests)
    finally:
        case.engine.call(accept_what_matches)
    assert await case.largest_gap(some, got) > CAUGHT
