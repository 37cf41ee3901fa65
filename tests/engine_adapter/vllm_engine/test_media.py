"""Prompts with pictures or recordings: with every proposer, texts are those of plain decoding.

Small random models in float32. Chunks cut items, prompts share prefixes with the same and with
another item, and one has none. The model of transformers says what plain decoding must be.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_adapter.seam.media import Modality
from engine_adapter.seam.types import NONE
from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine.architectures.small_models import LOUD
from tests.engine_adapter.vllm_engine.support.media_engine import (
    MODELS,
    Answer,
    MediaEngine,
    MediaReference,
    Prompt,
    media_engine,
)
from tests.engine_adapter.vllm_engine.support.multimodal_families import FAMILIES
from tests.engine_adapter.vllm_engine.support.multimodal_models import Family, write_multimodal

pytestmark = [
    pytest.mark.engine,
    # vLLM looks at every attribute of torch's modules, the deprecated ones too.
    pytest.mark.filterwarnings("ignore:.torch.distributed.reduce_op:FutureWarning"),
    # The processor of GLM's models in transformers makes an array of a tensor.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't:DeprecationWarning"),
]

LOOKUPS = "ngram", "suffix"
FAST = "qwen2_vl"
"""The family of `make test`: its positions have three dimensions."""

OTHER = 72
"""Added to the seed of an item for another one of the same size."""

FEW_BLOCKS = 12
"""For fewer requests than run together."""

MORE_BLOCKS = {"gemma3": 4, "gemma4": 5, "gemma4_audio": 3, "mistral3": 2, "qwen3_5": 5}
"""So many times as many, where layers are in several groups."""

LENGTHS = {"gemma4": 256}
"""The longest request, where an item has many tokens."""

Case = tuple[MediaEngine, Path, Family]


@pytest.fixture(
    scope="module",
    params=proved_beyond([FAST], FAMILIES),
)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp(request.param) / "target"
    family = FAMILIES[request.param]
    write_multimodal(family, folder)
    with pytest.MonkeyPatch.context() as patch:
        engine = media_engine(patch, family, folder)
        yield engine, folder, family
        engine.stop()


def prompts_with(placeholder: tuple[int, ...]) -> list[Prompt]:
    """Items first, last and twice; two prompts differ in the item only."""
    rng = random.Random(1)

    def text(length: int) -> tuple[int, ...]:
        return tuple(rng.choice(LOUD) for _ in range(length))

    words = text(9)
    return [
        (words + placeholder + words * 2, (1,)),
        (words + placeholder + words * 2, (2,)),
        (placeholder + text(12), (1,)),
        (text(5) + placeholder + words + placeholder + words, (3, 4)),
        (words * 4, ()),
        (text(40) + placeholder, (5,)),
    ]


def check_same(answers: list[Answer], expected: list[Answer], what: str) -> None:
    assert [answer.tokens for answer in answers] == [plain.tokens for plain in expected], what


def check_drafts(prompts: list[Prompt], answers: list[Answer], method: str) -> None:
    """A draft model of text alone drafts for the prompt without items only."""
    for (_, seeds), answer in zip(prompts, answers, strict=True):
        if seeds and method == "draft":
            assert not answer.drafted
        elif method in MODELS:
            assert answer.drafted
    with_items = [answer for (_, seeds), answer in zip(prompts, answers, strict=True) if seeds]
    assert method == "draft" or any(answer.drafted for answer in with_items)


def test_the_trial_reads_an_item_and_leaves_nothing(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _, family = case
    assert family.modality in engine.modalities
    worker = engine.worker
    model = type(worker.model_runner.model)
    read: list[int] = []
    embed = model.embed_multimodal

    def count(*arguments: Any, **options: Any) -> Any:
        embeddings = embed(*arguments, **options)
        read.extend(len(each) for each in embeddings)
        return embeddings

    monkeypatch.setattr(model, "embed_multimodal", count)
    assert worker.specgate_try_text() == ""
    assert read == []
    for modality in Modality:
        read.clear()
        assert worker.specgate_try_media(modality.value) == ""
        assert len(read) == (1 if modality in engine.modalities else 0)
        assert all(read), "each item has embeddings"
    assert not worker.model_runner.encoder_cache.encoder_outputs
    assert not worker.model_runner.requests


def test_texts_are_those_of_plain_decoding(case: Case) -> None:
    engine, _, _ = case
    prompts = prompts_with(engine.placeholder)
    plain = engine.answers(prompts, NONE)
    assert plain[0].tokens != plain[1].tokens[: len(plain[0].tokens)], "items change texts"
    for method in (*LOOKUPS, *engine.models):
        engine.reset_prefix_cache()
        answers = engine.answers(prompts, method)
        check_same(answers, plain, method)
        check_drafts(prompts, answers, method)
        check_same(engine.answers(prompts, method), plain, f"{method}, cached")
    # Every fifth token of a prediction is wrong.
    predictions = [
        tuple(token if i % 5 else token ^ 1 for i, token in enumerate(each.tokens))
        for each in plain
    ]
    predicted = engine.answers(prompts, "prediction", predictions=predictions)
    check_same(predicted, plain, "prediction")
    assert all(0 < answer.accepted < answer.drafted for answer in predicted)
    check_same(engine.answers(prompts, "cascade"), plain, "cascade")
    everything = [*LOOKUPS, *engine.models, NONE]
    check_same(engine.answers(prompts, NONE, switches=everything), plain, "switches")
    engine.reset_prefix_cache()
    check_same(engine.answers(prompts, NONE, switches=everything), plain, "switches, cold")


@pytest.mark.prove
def test_plain_texts_are_the_models(case: Case) -> None:
    engine, folder, family = case
    prompts, reference = prompts_with(engine.placeholder), MediaReference(family, str(folder))
    for (_, seeds), answer in zip(prompts, engine.answers(prompts, NONE), strict=True):
        expected = reference.tokens(answer.prompt, seeds, len(answer.tokens))
        assert answer.tokens == expected
        if seeds:  # the negative control: another item has another text
            others = tuple(seed + OTHER for seed in seeds)
            assert answer.tokens != reference.tokens(answer.prompt, others, len(answer.tokens))


@pytest.mark.prove
@pytest.mark.parametrize("name", FAMILIES)
def test_preempted_requests_keep_their_texts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "target"
    write_multimodal(FAMILIES[name], folder)
    blocks = FEW_BLOCKS * MORE_BLOCKS.get(name, 1)
    fields = {"num_gpu_blocks_override": blocks, "max_num_seqs": 6}
    engine = media_engine(
        monkeypatch, FAMILIES[name], folder, max_model_len=LENGTHS.get(name, 160), **fields
    )
    try:
        prompts = prompts_with(engine.placeholder)
        alone = [
            engine.answers([prompt], NONE, count=24 + i)[0] for i, prompt in enumerate(prompts)
        ]
        methods = [*LOOKUPS, *engine.models]
        for method in methods:
            check_same(engine.answers(prompts, method), alone, method)
        check_same(engine.answers(prompts, NONE, switches=methods), alone, "switches")
        assert engine.preemptions > 0
    finally:
        engine.stop()


def test_lost_items_are_seen(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: items whose embeddings are lost change texts."""
    from vllm.v1.worker.gpu.mm.encoder_runner import EncoderRunner

    engine, _, _ = case
    prompts = prompts_with(engine.placeholder)
    engine.reset_prefix_cache()
    plain = engine.answers(prompts, NONE)
    gather = EncoderRunner.gather_mm_embeddings

    def lose(*arguments: Any, **options: Any) -> Any:
        embeddings, is_embedding = gather(*arguments, **options)
        return [torch.zeros_like(each) for each in embeddings], is_embedding

    monkeypatch.setattr(EncoderRunner, "gather_mm_embeddings", lose)
    engine.reset_prefix_cache()
    broken = engine.answers(prompts, NONE)
    engine.reset_prefix_cache()
    assert sum(a.tokens != b.tokens for a, b in zip(broken, plain, strict=True)) == 5


def test_the_trial_names_why_items_cannot_be_read(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test: the engine stays in the middle of a step."""
    engine, _, family = case

    def fail(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(type(engine.worker.model_runner.model), "embed_multimodal", fail)
    assert engine.worker.specgate_try_media(family.modality) == "RuntimeError: no kernel"
