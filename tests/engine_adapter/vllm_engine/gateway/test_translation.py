"""The translation between the seam's types and vLLM's."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.seam.counts import SpecStats
from engine_adapter.seam.errors import EngineDead, EngineError, EngineFull, InvalidRequest
from engine_adapter.seam.types import (
    ConstraintKind,
    FinishReason,
    GenerationRequest,
    RepetitionDetection,
    SamplingOptions,
    SpecDecodeParams,
    SpecMethod,
    StructuredOutput,
)
from engine_adapter.vllm_engine.core.counting import RowState
from engine_adapter.vllm_engine.gateway.translation import (
    ConstraintFailed,
    engine_input,
    read_prompt_logprobs,
    sampling_params,
    to_delta,
    to_invalid_request,
)
from engine_adapter.vllm_engine.patches.prompt_logprobs import UndecodedPrompt
from engine_adapter.vllm_engine.wire import (
    FAILURE,
    GRAMMARS_FULL,
    from_extra_args,
    grammar_bytes_of,
)

UNPINNED = SpecDecodeParams()
OPTIONS = SamplingOptions(
    temperature=0.7,
    top_p=0.9,
    top_k=17,
    min_p=0.125,
    min_tokens=3,
    max_tokens=50,
    stop=("\n\n", "END"),
    stop_token_ids=(5, 9),
    seed=42,
    presence_penalty=0.5,
    frequency_penalty=-0.25,
    repetition_penalty=1.25,
    thinking_token_budget=12,
    repetition_detection=RepetitionDetection(6, 3, 2),
    logit_bias={7: -100.0, 8: 2.5},
    allowed_token_ids=(7, 8, 9),
    bad_words=("never",),
    structured_output=StructuredOutput(ConstraintKind.REGEX, "[0-9]+"),
    logprobs=3,
    prompt_logprobs=2,
    ignore_eos=True,
    skip_special_tokens=False,
    spaces_between_special_tokens=False,
    include_stop_str_in_output=True,
)

PLAIN_FIELDS = [
    f.name
    for f in fields(SamplingOptions)
    if f.name not in ("structured_output", "repetition_detection")
]
"""The fields that vLLM has under the same name."""


def translated(options: SamplingOptions, spec: SpecDecodeParams = UNPINNED) -> Any:
    return sampling_params(GenerationRequest("r", (1, 2), options, spec))


def logprob(rank: int, value: float, token: str | None = "x") -> Any:
    return SimpleNamespace(rank=rank, logprob=value, decoded_token=token)


def output(choice: dict[str, Any] | None = None, **request: Any) -> Any:
    """The fields of a `RequestOutput` of kind DELTA that are read."""
    plain = {
        "text": "",
        "token_ids": [],
        "logprobs": None,
        "finish_reason": None,
        "stop_reason": None,
    }
    whole = {
        "prompt_token_ids": [1, 2],
        "prompt_logprobs": None,
        "num_cached_tokens": None,
        "kv_transfer_params": None,
    }
    return SimpleNamespace(outputs=[SimpleNamespace(**plain | (choice or {}))], **whole | request)


# -- requests --------------------------------------------------------------------------------


def test_the_example_differs_from_every_default() -> None:
    default = SamplingOptions()
    same = {f.name for f in fields(default) if getattr(OPTIONS, f.name) == getattr(default, f.name)}
    assert not same, "a field with its default value would not show whether it is passed on"


@pytest.mark.needs_vllm
@pytest.mark.parametrize("name", PLAIN_FIELDS)
def test_every_sampling_option_reaches_vllm(name: str) -> None:
    ours, theirs = getattr(OPTIONS, name), getattr(translated(OPTIONS), name)
    assert theirs == (list(ours) if isinstance(ours, tuple) else ours)


@pytest.mark.needs_vllm
@pytest.mark.parametrize("name", PLAIN_FIELDS)
def test_every_default_reaches_vllm(name: str) -> None:
    ours, theirs = getattr(SamplingOptions(), name), getattr(translated(SamplingOptions()), name)
    if name in ("logit_bias", "allowed_token_ids"):
        assert theirs is None, "vLLM takes an empty list to allow nothing"
    else:
        assert theirs == (list(ours) if isinstance(ours, tuple) else ours)


@pytest.mark.needs_vllm
@pytest.mark.parametrize(
    ("wanted", "field", "value"),
    [
        (StructuredOutput(ConstraintKind.JSON_OBJECT), "json_object", True),
        (StructuredOutput(ConstraintKind.JSON_SCHEMA, "{}"), "json", "{}"),
        (StructuredOutput(ConstraintKind.REGEX, "a+"), "regex", "a+"),
        (StructuredOutput(ConstraintKind.GRAMMAR, "root ::= x"), "grammar", "root ::= x"),
        (StructuredOutput(ConstraintKind.CHOICE, choices=("a", "b")), "choice", ["a", "b"]),
    ],
)
def test_each_kind_of_constraint_reaches_vllm(
    wanted: StructuredOutput, field: str, value: object
) -> None:
    theirs = translated(SamplingOptions(structured_output=wanted)).structured_outputs
    assert getattr(theirs, field) == value


@pytest.mark.needs_vllm
def test_the_detection_of_repetition_reaches_vllm() -> None:
    theirs = translated(OPTIONS).repetition_detection
    assert (theirs.max_pattern_size, theirs.min_count, theirs.min_pattern_size) == (6, 3, 2)
    assert translated(SamplingOptions()).repetition_detection is None


@pytest.mark.needs_vllm
def test_without_a_constraint_vllm_gets_none() -> None:
    assert translated(SamplingOptions()).structured_outputs is None


@pytest.mark.needs_vllm
def test_outputs_are_deltas_of_one_sequence() -> None:
    from vllm.sampling_params import RequestOutputKind

    params = translated(SamplingOptions())
    assert params.output_kind == RequestOutputKind.DELTA
    assert (params.n, params.stream_interval) == (1, 1)
    request = GenerationRequest("r", (1,), stream_interval=7)
    assert sampling_params(request).stream_interval == 7


@pytest.mark.needs_vllm
def test_the_selected_method_reaches_the_engine() -> None:
    spec = SpecDecodeParams(SpecMethod("small", 3), pinned=True, switch_epoch=4)
    assert from_extra_args(translated(SamplingOptions(), spec)) == spec


@pytest.mark.needs_vllm
@pytest.mark.parametrize(
    "bad", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"presence_penalty": 9.0}]
)
def test_a_value_that_vllm_refuses_is_an_invalid_request(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        translated(SamplingOptions(**bad))  # type: ignore[arg-type]
    (name,) = bad
    assert caught.value.param in (name, None), "vLLM does not name every field"
    assert name in str(caught.value)


@pytest.mark.needs_vllm
def test_a_refusal_does_not_repeat_the_value() -> None:
    from vllm.exceptions import VLLMValidationError

    request = GenerationRequest("r", (1,), SamplingOptions())
    for message, value in (("Too many.", ["a" * 1000] * 200), ("b" * 10_000, None)):
        error = VLLMValidationError(message, parameter="bad_words", value=value)
        refusal = to_invalid_request(error, request)
        assert refusal.param == "bad_words"
        assert str(refusal).startswith(f"bad_words: {message[:9]}")
        assert len(str(refusal)) < 250


# -- outputs ---------------------------------------------------------------------------------


def test_a_delta_has_the_new_text_and_tokens() -> None:
    delta = to_delta(output({"text": "Hi", "token_ids": [7, 8]}, num_cached_tokens=16))
    assert (delta.text, delta.token_ids, delta.num_cached_tokens) == ("Hi", (7, 8), 16)
    assert delta.logprobs is delta.prompt_logprobs is delta.finish_reason is delta.spec is None


def test_an_unknown_number_of_cached_tokens_is_0() -> None:
    assert to_delta(output()).num_cached_tokens == 0


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (None, None),
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("repetition", FinishReason.REPETITION),
    ],
)
def test_finish_reasons_keep_their_names(theirs: str | None, ours: FinishReason | None) -> None:
    assert to_delta(output({"finish_reason": theirs})).finish_reason is ours


@pytest.mark.parametrize("matched", [None, "END", 5])
def test_the_stop_reason_is_passed_on(matched: str | int | None) -> None:
    delta = to_delta(output({"finish_reason": "stop", "stop_reason": matched}))
    assert delta.stop_reason == matched


def test_an_aborted_or_failed_sequence_raises() -> None:
    with pytest.raises(EngineDead):
        to_delta(output({"finish_reason": "abort"}))
    with pytest.raises(EngineError):
        to_delta(output({"finish_reason": "error"}))


def test_a_constraint_that_ended_its_sequence_raises_with_the_reason() -> None:
    failed = {"finish_reason": "error"}
    with pytest.raises(ConstraintFailed, match="it is slow"):
        to_delta(output(failed, kv_transfer_params={FAILURE: "it is slow"}))
    with pytest.raises(EngineFull, match="the formats of running requests take all memory"):
        to_delta(output(failed, kv_transfer_params={FAILURE: GRAMMARS_FULL}))


def test_the_size_that_the_checker_knows_goes_with_the_request() -> None:
    constraint = StructuredOutput(ConstraintKind.REGEX, "[0-9]+")
    checker = SimpleNamespace(size_of={constraint: 7000}.get)
    for options, size in (
        (SamplingOptions(structured_output=constraint), 7000),
        (SamplingOptions(structured_output=replace(constraint, value="a")), None),
        (SamplingOptions(), None),
    ):
        params = sampling_params(GenerationRequest("r", (1,), options), checker)
        assert grammar_bytes_of(params) == size


def test_statistics_come_with_their_output() -> None:
    row = RowState(SpecMethod(), pinned=False, streams_stats=False)
    row.add_emitted(1)
    row.add_emitted(1)
    assert to_delta(output(kv_transfer_params=row.to_wire())).spec == SpecStats(1, 1, {})


def test_alternatives_are_sorted_best_first() -> None:
    position = {9: logprob(7, -4.0, "nine"), 3: logprob(2, -1.5, "three"), 5: logprob(1, -0.5, "V")}
    delta = to_delta(output({"token_ids": [9], "logprobs": [position]}))
    assert delta.logprobs is not None
    (entry,) = delta.logprobs
    assert (entry.actual.token_id, entry.actual.token, entry.actual.logprob) == (9, "nine", -4.0)
    assert [top.token_id for top in entry.top] == [5, 3, 9]


def test_a_token_without_text_has_an_empty_text() -> None:
    delta = to_delta(output({"token_ids": [9], "logprobs": [{9: logprob(1, -1.0, None)}]}))
    assert delta.logprobs is not None
    assert delta.logprobs[0].actual.token == ""


def test_each_new_token_has_its_log_probabilities() -> None:
    positions = [{7: logprob(1, -0.1)}, {8: logprob(1, -0.2)}]
    delta = to_delta(output({"token_ids": [7, 8], "logprobs": positions}))
    assert delta.logprobs is not None
    assert [entry.actual.logprob for entry in delta.logprobs] == [-0.1, -0.2]


class Pieces(UndecodedPrompt):
    """A prompt whose pieces are there already."""

    def __init__(self, pieces: Iterable[list[Any]]) -> None:
        self._pieces = pieces

    def pieces(self) -> Iterator[list[Any]]:
        return iter(self._pieces)


def test_the_prompts_first_token_has_no_log_probability() -> None:
    position = {2: logprob(3, -2.0), 4: logprob(1, -0.1)}
    first_output = output(prompt_logprobs=Pieces([[None], [position]]))
    entries = asyncio.run(read_prompt_logprobs(first_output, asyncio.Lock()))
    delta = to_delta(first_output, entries)
    assert delta.prompt_logprobs is not None
    first, second = delta.prompt_logprobs
    assert first is None
    assert second is not None
    assert (second.actual.token_id, [top.token_id for top in second.top]) == (2, [4, 2])


def test_a_prompt_of_one_token_has_no_log_probability() -> None:
    one_token = output(prompt_token_ids=[1], prompt_logprobs=[None])
    assert asyncio.run(read_prompt_logprobs(one_token, asyncio.Lock())) == (None,)


def test_requests_take_turns_at_reading_their_prompts() -> None:
    read: list[str] = []

    def pieces(name: str, count: int) -> Iterator[list[Any]]:
        for _ in range(count):
            read.append(name)
            yield [{1: logprob(1, -0.1)}]

    def first_output(name: str, count: int) -> Any:
        prompt = Pieces(pieces(name, count))
        return output(prompt_token_ids=[1] * count, prompt_logprobs=prompt)

    async def scenario() -> None:
        turn = asyncio.Lock()
        outputs = first_output("long", 5), first_output("short", 2)
        await asyncio.gather(*(read_prompt_logprobs(output, turn) for output in outputs))

    asyncio.run(scenario())
    assert read == ["long", "short", "long", "short", "long", "long", "long"]


def test_a_prompt_carries_its_salt_only_if_it_has_one() -> None:
    tokens = {"type": "token", "prompt_token_ids": [1, 2]}
    assert engine_input(GenerationRequest("r", (1, 2))) == tokens
    salted = engine_input(GenerationRequest("r", (1, 2), cache_salt="s"))
    assert salted == {**tokens, "cache_salt": "s"}
