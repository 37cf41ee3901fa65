"""LoRA on a real engine: a text depends on its adapter and not on the proposer.

Proposers draft with the base model.
"""

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine_adapter.seam.errors import EngineConfigError, LoraRefused
from engine_adapter.seam.types import GenerationRequest, LoraAdapter, SamplingOptions
from tests.cases import proved_beyond
from tests.engine_adapter.lora import cached_adapter, write_adapter
from tests.engine_adapter.vllm_engine.conftest import (
    CHOICES,
    COMMON,
    PROPOSERS,
    TARGET,
    start,
)
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    generate,
    greedy,
    pinned,
    start_stock,
)

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

LENGTH = 32
DRAFTING = CHOICES | {"prediction": 8}
FEW = ("none", "eagle3")
"""Methods of which each has batches of its own in `make test`; all of them share one there too."""
ECHOES = itertools.count()
LORA: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two small adapters of the target."""
    root = tmp_path_factory.mktemp("adapters")
    return {name: write_adapter(root / name, TARGET, seed=i) for i, name in enumerate("ab")}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lora(folders: dict[str, str]) -> AsyncIterator[Live]:
    """An engine for two adapters in a step and three in memory."""
    fields = LORA | {"max_cpu_loras": 3, "kv_cache_memory_bytes": 512 << 20}
    started = await start(PROPOSERS, lora_modules={"a": folders["a"]}, **fields)
    await started.engine.load_lora_adapter("b", folders["b"])
    yield started
    await started.engine.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def texts(folders: dict[str, str], prompts: list[Prompt]) -> dict[str, list[tuple[int, ...]]]:
    """The texts of stock vLLM for six prompts, with each adapter and with none."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import RequestOutputKind

    llm = start_stock(TARGET, **LORA, **COMMON)
    params = SamplingParams(
        temperature=0,
        max_tokens=LENGTH,
        ignore_eos=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )

    async def run(name: str, i: int) -> tuple[int, ...]:
        request = LoRARequest(name, "ab".index(name) + 1, folders[name]) if name else None
        prompt: Any = {"prompt_token_ids": list(prompts[i])}
        outputs = llm.generate(prompt, params, f"{name}-{i}", lora_request=request)
        return [tuple(output.outputs[0].token_ids) async for output in outputs][-1]

    made = {}
    for name in ("", "a", "b"):
        made[name] = list(await asyncio.gather(*(run(name, i) for i in range(6))))
    llm.shutdown()
    return made


def adapter_of(live: Live, name: str) -> LoraAdapter | None:
    return next((one for one in live.engine.lora_adapters if one.name == name), None)


async def text(
    live: Live, prompt: Prompt, name: str, proposer: str, prediction: Sequence[int] = ()
) -> tuple[int, ...]:
    """A greedy text with an adapter, or with none, under a proposer."""
    spec = replace(pinned(proposer, DRAFTING[proposer]), prediction=tuple(prediction))
    result = await generate(live, prompt, greedy(LENGTH), spec, adapter=adapter_of(live, name))
    return result.tokens


def agree(found: Sequence[tuple[int, ...]], wanted: Sequence[tuple[int, ...]]) -> None:
    """At most one in twenty texts differs: two best logits may be equal."""
    differing = [i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b]
    assert len(differing) <= len(found) // 20, differing


async def test_adapters_change_the_text(
    texts: dict[str, list[tuple[int, ...]]],
) -> None:
    for one, other in (("", "a"), ("", "b"), ("a", "b")):
        same = sum(a == b for a, b in zip(texts[one], texts[other], strict=True))
        assert same < 3, "adapters must have an effect to be tested"


@pytest.mark.parametrize("proposer", proved_beyond(FEW, DRAFTING))
async def test_the_text_is_that_of_stock_vllm_with_the_same_adapter(
    lora: Live, prompts: list[Prompt], texts: dict[str, list[tuple[int, ...]]], proposer: str
) -> None:
    jobs = [(i, name) for i in range(6) for name in ("", "a", "b")]
    wanted = [texts[name][i] for i, name in jobs]
    found = await asyncio.gather(
        *(
            text(lora, prompts[i], name, proposer, prediction=t)
            for (i, name), t in zip(jobs, wanted, strict=True)
        )
    )
    agree(found, wanted)


@pytest.mark.parametrize("i", proved_beyond([1], range(3)))
async def test_all_proposers_and_adapters_share_one_batch(
    lora: Live, prompts: list[Prompt], texts: dict[str, list[tuple[int, ...]]], i: int
) -> None:
    jobs = [(name, proposer) for name in ("", "a", "b") for proposer in DRAFTING]
    drafted_texts = await asyncio.gather(*(text(lora, prompts[i], *job) for job in jobs))
    agree(drafted_texts, [texts[name][i] for name, _ in jobs])


async def test_drafts_are_the_base_models(lora: Live, prompts: list[Prompt]) -> None:
    def accepted(results: Sequence[Any]) -> float:
        counts = [result.counts("self") for result in results]
        return sum(c.accepted for c in counts) / sum(c.drafted for c in counts)

    spec = pinned("self", 5)
    rates = {}
    for name in ("", "a"):
        adapter = adapter_of(lora, name)
        rates[name] = accepted(
            await asyncio.gather(
                *(generate(lora, p, greedy(LENGTH), spec, adapter=adapter) for p in prompts[:6])
            )
        )
    assert rates[""] == 1.0, "adapters must not affect the draft model"
    assert rates["a"] < 0.9


async def test_a_seeded_text_with_an_adapter_is_the_same_under_every_proposer(
    lora: Live, prompts: list[Prompt]
) -> None:
    sampled = SamplingOptions(temperature=0.8, seed=9, max_tokens=LENGTH, ignore_eos=True)
    adapter = adapter_of(lora, "b")
    results = await asyncio.gather(
        *(
            generate(lora, prompts[1], sampled, pinned(name, k), adapter=adapter)
            for name, k in DRAFTING.items()
        )
    )
    assert len({result.tokens for result in results}) == 1


async def echoed(live: Live, prompt: Prompt, name: str) -> list[float]:
    """The log probabilities of a prompt's tokens with an adapter."""
    options = replace(greedy(2), prompt_logprobs=1)
    request = GenerationRequest(
        f"echo-{next(ECHOES)}", prompt, options, pinned("none", 0), adapter_of(live, name)
    )
    deltas = [delta async for delta in live.engine.generate(request)]
    assert deltas[0].prompt_logprobs is not None
    return [entry.actual.logprob for entry in deltas[0].prompt_logprobs if entry is not None]


async def test_echoed_log_probabilities_beside_other_requests_are_those_of_the_own_adapter(
    lora: Live, prompts: list[Prompt], folders: dict[str, str]
) -> None:
    """vLLM's step failed here, and with it the engine."""
    path = write_adapter(Path(folders["a"]).parent / "head", TARGET, seed=7, head=True)
    await lora.engine.unload_lora_adapter("b")
    await lora.engine.load_lora_adapter("head", path)
    jobs = [(i, name) for i in range(3) for name in ("", "a", "head")]
    alone = [await echoed(lora, prompts[i], name) for i, name in jobs]
    for plain, with_a, with_head in zip(*[iter(alone)] * 3, strict=True):
        assert max(abs(x - y) for x, y in zip(plain, with_a, strict=True)) > 0.1
        assert max(abs(x - y) for x, y in zip(plain, with_head, strict=True)) > 0.1
    running = [
        asyncio.create_task(generate(lora, prompts[9], greedy(300), adapter=adapter_of(lora, name)))
        for name in ("", "head")
    ]
    for group in (jobs[:1], jobs[1:2], jobs):
        beside = await asyncio.gather(*(echoed(lora, prompts[i], name) for i, name in group))
        for (i, name), found in zip(group, beside, strict=True):
            wanted = alone[jobs.index((i, name))]
            assert found == pytest.approx(wanted, abs=1e-3), (i, name)
    assert [len((await task).tokens) for task in running] == [300, 300]
    await lora.engine.unload_lora_adapter("head")
    await lora.engine.load_lora_adapter("b", folders["b"])


async def test_a_new_adapter_with_an_old_name_does_not_reuse_its_cache(
    lora: Live, prompts: list[Prompt], folders: dict[str, str]
) -> None:
    texts = []
    for seed in (5, 6):
        path = Path(folders["a"]).parent / "again"
        write_adapter(path, TARGET, seed=seed)
        await lora.engine.load_lora_adapter("again", str(path))
        texts.append([await text(lora, prompts[i], "again", "ngram") for i in range(4)])
        await lora.engine.unload_lora_adapter("again")
    assert all(a != b for a, b in zip(*texts, strict=True)), "the prefix cache must not be shared"


async def test_an_adapter_of_the_hub_is_given_to_the_engine_as_a_folder(
    lora: Live,
    prompts: list[Prompt],
    folders: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # The cache is this process's own: the engine's process would not find the id in it.
    snapshot = cached_adapter(monkeypatch, tmp_path, "org/sql")
    shutil.copytree(folders["b"], snapshot, dirs_exist_ok=True)
    await lora.engine.load_lora_adapter("sql", "org/sql")
    found = [await text(lora, prompts[i], name, "self") for i in range(2) for name in ("sql", "b")]
    await lora.engine.unload_lora_adapter("sql")
    assert found[0::2] == found[1::2]


async def test_an_unusable_adapter_is_refused_and_leaves_nothing(
    lora: Live, prompts: list[Prompt], folders: dict[str, str]
) -> None:
    too_big = write_adapter(Path(folders["a"]).parent / "big", TARGET, seed=1, rank=16)
    neighbour = asyncio.create_task(text(lora, prompts[0], "a", "self"))
    for path in (too_big, "org/there-is-none"):
        with pytest.raises(EngineConfigError) as caught:
            await lora.engine.load_lora_adapter("bad", path)
        assert caught.value.field == "lora_path"
    assert len(await neighbour) == LENGTH
    assert [adapter.name for adapter in lora.engine.lora_adapters] == ["a", "b"]


async def test_an_adapter_in_use_is_not_unloaded(lora: Live, prompts: list[Prompt]) -> None:
    adapter = adapter_of(lora, "a")
    request = GenerationRequest("in-use", prompts[0], greedy(100), pinned("ngram", 5), adapter)
    deltas = lora.engine.generate(request)
    await anext(deltas)
    with pytest.raises(LoraRefused) as caught:
        await lora.engine.unload_lora_adapter("a")
    assert caught.value.code == "adapter_in_use"
    await deltas.aclose()


@pytest.mark.prove
async def test_adapters_are_loaded_again_in_the_next_process(
    lora: Live, prompts: list[Prompt], texts: dict[str, list[tuple[int, ...]]]
) -> None:
    """The last test of this engine, because it kills the process."""
    for process in lora.processes:
        process.kill()
    async with asyncio.timeout(120):
        while not lora.recorder.restarts:  # noqa: ASYNC110, the recorder has no event for it
            await asyncio.sleep(0.1)
    found = [await text(lora, prompts[i], name, "self") for i in range(2) for name in ("a", "b")]
    agree(found, [texts[name][i] for i in range(2) for name in ("a", "b")])
