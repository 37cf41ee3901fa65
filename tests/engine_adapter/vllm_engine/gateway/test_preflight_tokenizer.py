"""A draft model whose tokenizer is not the target's is refused, unless an option allows it."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine_adapter.vllm_engine.gateway import preflight
from tests.engine_adapter.vllm_engine.gateway.model_folders import (
    LLAMA,
    WORDS,
    MakeModel,
    config,
    draft,
    refusal,
)


def test_a_draft_model_with_the_targets_tokenizer_is_accepted(make_model: MakeModel) -> None:
    # Models of one family often pad their embeddings to different sizes.
    padded = make_model("draft", LLAMA | {"vocab_size": 64})
    preflight.check_models(config(make_model("target"), [draft(padded)]))


@pytest.mark.parametrize("words", [(*WORDS, "dog"), WORDS[:-1], (WORDS[1], WORDS[0], *WORDS[2:])])
def test_a_draft_model_with_another_tokenizer_is_refused(
    make_model: MakeModel, words: Sequence[str]
) -> None:
    other = make_model("draft", words=words)
    error = refusal(preflight.check_models, config(make_model("target"), [draft(other)]))
    assert error.setting == "proposer"
    assert "small" in str(error)
    assert other in str(error)
    assert '"use_heterogeneous_vocab": true' in str(error)


@pytest.mark.parametrize("words", [(*WORDS, "dog"), WORDS[:-1], (WORDS[1], WORDS[0], *WORDS[2:])])
def test_an_option_allows_another_tokenizer(make_model: MakeModel, words: Sequence[str]) -> None:
    other = make_model("draft", words=words)
    fields = draft(other, use_heterogeneous_vocab=True)
    with capture_logs() as lines:
        preflight.check_models(config(make_model("target"), [fields]))
    (line,) = lines
    assert (line["event"], line["proposer"]) == ("vocabulary_mapped", "small")
    assert line["detail"].startswith(f"{len({*words} & {*WORDS}) + 1} tokens map: ")


def test_another_tokenizer_of_which_too_little_maps_is_refused(make_model: MakeModel) -> None:
    other = make_model("draft", words=[f"word{i}" for i in range(20)])
    target = make_model("target", words=[f"other{i}" for i in range(20)])
    fields = draft(other, use_heterogeneous_vocab=True)
    error = refusal(preflight.check_models, config(target, [fields]))
    assert (error.setting, error.field) == ("proposer", "use_heterogeneous_vocab")
    assert str(error).startswith("proposer: small: use_heterogeneous_vocab cannot help: only 1 ")


def test_every_draft_model_is_checked(make_model: MakeModel) -> None:
    proposers = [draft(make_model("good"), "good"), draft(make_model("bad", words="ab"), "bad")]
    error = refusal(preflight.check_models, config(make_model("target"), proposers))
    assert "bad: the tokenizer" in str(error)


def test_a_missing_draft_model_is_named_with_proposer(make_model: MakeModel) -> None:
    error = refusal(preflight.check_models, config(make_model("target"), [draft("/no/such/draft")]))
    assert "proposer" in error.setting
    assert "small" in str(error)
    assert "/no/such/draft" in str(error)


def test_a_draft_model_without_tokenizer_is_named_with_proposer(
    make_model: MakeModel,
) -> None:
    bare = make_model("draft", words=None)
    error = refusal(preflight.check_models, config(make_model("target"), [draft(bare)]))
    assert "proposer" in error.setting
    assert bare in str(error)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("{target}", None)),
        ({"revision": "r1"}, ("{target}", "r1")),
        ({"tokenizer_revision": "r2"}, ("{target}", "r2")),
        ({"revision": "r1", "tokenizer_revision": "r2"}, ("{target}", "r2")),
        ({"tokenizer": "elsewhere", "revision": "r1"}, ("elsewhere", "r1")),
        ({"tokenizer": "elsewhere", "tokenizer_revision": "r2"}, ("elsewhere", "r2")),
    ],
)
def test_a_draft_models_tokenizer_is_compared_with_the_one_that_vllm_loads(
    make_model: MakeModel,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    expected: tuple[str, str | None],
) -> None:
    target, small = make_model("target"), make_model("draft")
    read: list[tuple[str, str | None]] = []

    def load(model: str, revision: str | None, *, trust_remote_code: bool) -> Any:
        read.append((model, revision))
        return SimpleNamespace(get_vocab=dict)

    monkeypatch.setattr(preflight, "load_tokenizer", load)
    preflight.check_models(config(target, [draft(small)], **given))
    name, revision = expected
    assert read == [(small, None), (name.format(target=target), revision)]


def test_a_draft_model_must_share_a_separately_set_tokenizer(make_model: MakeModel) -> None:
    target, apart = make_model("target", words=None), make_model("tokenizer")
    preflight.check_models(config(target, [draft(make_model("draft"))], tokenizer=apart))


def test_without_a_draft_model_no_tokenizer_is_read(make_model: MakeModel) -> None:
    preflight.check_models(config(make_model("target", words=None), [{"name": "ngram"}]))
