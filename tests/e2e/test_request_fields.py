"""Fields of requests on the real engine: what they return, and that they leave the text."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel

from tests.e2e.served import PROPOSERS, Served
from tests.server.schema.pydantic_models import MODELS

pytestmark = pytest.mark.engine

PROMPT = "def area(radius):\n    return 3.14 * radius * radius\n\n\ndef volume("


def complete(served: Served, **fields: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "return_token_ids": True}
    choice: dict[str, Any] = served.post("/v1/completions", body | fields).json()["choices"][0]
    return choice


def of_all(served: Served, **fields: Any) -> list[dict[str, Any]]:
    """The choices under every proposer and none, which share batches."""

    def run(name: str) -> dict[str, Any]:
        return complete(served, **fields, spec_decode={"proposer": name})

    names = ("none", *PROPOSERS)
    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(run, names))


def test_a_truncated_prompt_is_the_prompt_of_its_last_tokens(served: Served) -> None:
    whole = complete(served)["prompt_token_ids"]
    for side, ids in (("left", whole[-9:]), ("right", whole[:9])):
        want = complete(served, prompt=ids, spec_decode={"proposer": "none"})
        for cut in of_all(served, truncate_prompt_tokens=9, truncation_side=side):
            assert cut["prompt_token_ids"] == ids
            assert cut["token_ids"] == want["token_ids"]


def test_a_salt_leaves_the_text(served: Served) -> None:
    want = complete(served, spec_decode={"proposer": "none"})["token_ids"]
    for name in PROPOSERS:
        salted = complete(served, cache_salt=name, spec_decode={"proposer": name})
        assert salted["token_ids"] == want


def test_top_p_of_zero_is_greedy(served: Served) -> None:
    want = complete(served)["token_ids"]
    for choice in of_all(served, temperature=1.7, top_p=0):
        assert choice["token_ids"] == want


def test_prompt_logprobs_are_those_of_an_echo(served: Served) -> None:
    both = complete(served, echo=True, logprobs=2, prompt_logprobs=2, max_tokens=0)
    ids, positions = both["prompt_token_ids"], both["prompt_logprobs"]
    assert len(ids) == len(positions)
    for i, (token, position) in enumerate(zip(ids, positions, strict=True)):
        if i == 0:
            assert position is None
            continue
        own = position[str(token)]
        assert own["logprob"] == pytest.approx(both["logprobs"]["token_logprobs"][i], abs=1e-6)
        ranks = [one["rank"] for one in position.values()]
        assert {1, 2} <= set(ranks)
        assert own["logprob"] <= max(one["logprob"] for one in position.values())


def test_a_prompt_of_one_token_has_no_log_probability(served: Served) -> None:
    choice = complete(served, prompt=[6], echo=True, logprobs=1, prompt_logprobs=1, max_tokens=0)
    assert choice["prompt_logprobs"] == [None]
    assert choice["logprobs"]["token_logprobs"] == [None]


def test_prompt_logprobs_leave_the_text_under_every_proposer(served: Served) -> None:
    want, *drafted = of_all(served, prompt_logprobs=1)
    first, *others = want["prompt_logprobs"]
    assert first is None
    for got in drafted:
        assert got["token_ids"] == want["token_ids"]
        for mine, plain in zip(got["prompt_logprobs"][1:], others, strict=True):
            assert mine.keys() == plain.keys()
            for token, one in mine.items():
                assert one["logprob"] == pytest.approx(plain[token]["logprob"], abs=1e-4)


def test_the_schemas_of_ordinary_classes_are_enforced_as_far_as_the_header_says(
    served: Served,
) -> None:
    def check(model: type[BaseModel], names: Sequence[str]) -> None:
        schema = model.model_json_schema()
        wrapper = {"name": model.__name__, "schema": schema}
        body = {
            "messages": [{"role": "user", "content": "Write it."}],
            "response_format": {"type": "json_schema", "json_schema": wrapper},
            "max_tokens": 400,
            "temperature": 1.0,
            "seed": 3,
        }
        response = served.post("/v1/chat/completions", body)
        assert response.headers.get("x-specgate-unenforced-keywords", "") == ", ".join(names)
        choice = response.json()["choices"][0]
        if choice["finish_reason"] == "stop" and not names:
            jsonschema.validate(json.loads(choice["message"]["content"]), schema)

    with ThreadPoolExecutor(len(MODELS)) as pool:
        list(pool.map(check, *zip(*MODELS.items(), strict=True)))


def test_foreign_constraints_are_enforced(served: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    for fields in (
        {"json_schema": schema},
        {"format": schema},
        {"guided_json": schema},
        {"response_format": {"type": "json_object", "schema": schema}},
        {"grammar": 'root ::= "{\\"a\\":" ("true" | "false") "}"'},
        {"guided_regex": r'\{"a":(true|false)\}'},
    ):
        text = complete(served, **fields)["text"]
        assert isinstance(json.loads(text)["a"], bool), (fields, text)
    assert complete(served, guided_choice=["yes", "no"])["text"] in ("yes", "no")
