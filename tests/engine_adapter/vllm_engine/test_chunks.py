"""A target with attention over chunks: exact texts, and its own drafts accepted, under switches."""

import random
from pathlib import Path

import pytest

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.engine_adapter.vllm_engine.conftest import COMMON
from tests.engine_adapter.vllm_engine.support.live import TIE
from tests.engine_adapter.vllm_engine.support.plain_model import PlainModel
from tests.engine_adapter.vllm_engine.support.recorded import RecordedEngine, RecordedRequest
from tests.engine_adapter.vllm_engine.support.window_models import CHUNK, write_random_model

pytestmark = [
    pytest.mark.engine,
    pytest.mark.prove,
    pytest.mark.asyncio(loop_scope="session"),
]

LLAMA_4 = {
    "num_hidden_layers": 2,
    "attention_chunk_size": CHUNK,
    "no_rope_layer_interval": 2,
    "intermediate_size_mlp": 192,
    "interleave_moe_layer_step": 3,  # so no layer has experts
    "use_qk_norm": False,
}


async def test_texts_under_switches_are_those_of_transformers(tmp_path: Path) -> None:
    target = write_random_model(tmp_path, "llama4_text", LLAMA_4)
    specs = parse_specs(
        [
            {"name": "ngram"},
            {"name": "prediction", "num_speculative_tokens": 5},
            {
                "name": "self",
                "method": "draft_model",
                "model": target,
                "num_speculative_tokens": 5,
            },
        ]
    )
    options = {"max_num_batched_tokens": 200, "num_gpu_blocks_override": 60, "block_size": 32}
    rng = random.Random(0)
    prompts = [tuple(rng.randrange(3, 2000) for _ in range(n)) for n in (20, 90, 300)]
    model = PlainModel(target)
    texts = await model.greedy(prompts, 60)
    methods = [PLAIN, SpecMethod("prediction", 3), SpecMethod("ngram", 5), SpecMethod("self", 5)]
    switches = {step: methods[step // 3 % 4] for step in range(0, 300, 3)}
    engine = RecordedEngine(EngineConfig(target, "chunks", specs, None, COMMON | options))
    try:
        assert [kind for kind, _ in engine.kv_cache_groups()] == ["FullAttentionSpec"]
        guesses = [tuple(t if rng.random() > 0.15 else 5 for t in text) for text in texts]
        got = engine.run(
            [
                RecordedRequest(prompt, 60, PLAIN, at=3 * i, prediction=guess)
                for i, (prompt, guess) in enumerate(zip(prompts, guesses, strict=True))
            ],
            switches,
        )
    finally:
        engine.stop()
    for i, (prompt, output) in enumerate(zip(prompts, got.outputs, strict=True)):
        assert await model.gap(prompt, output) < TIE
        drafted, accepted = got.accepted(i, "self", prompt)
        assert drafted == accepted > 0
    assert got.catchup["self"] > 2 * CHUNK
