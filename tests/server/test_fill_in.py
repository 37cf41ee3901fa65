"""`suffix`: a completion between two texts, with the tokens that a model has for that."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from demo import model_path
from server.fill_in import FAMILIES, FillInTokens, find_fill_in_tokens
from tests.server.conftest import StartGateway
from tests.server.gateway import MODEL, Gateway

BEFORE, AFTER = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))"


def write_target(folder: Path, names: tuple[str, str, str]) -> Path:
    """The demo's target, whose last three tokens are those for filling in."""
    shutil.copytree(model_path("target"), folder)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text("utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:-3]
    by_id = {token_id: text for text, token_id in vocabulary.items()}
    for name, token_id in zip(names, range(2045, 2048), strict=True):
        del vocabulary[by_id[token_id]]
        vocabulary[name] = token_id
        tokenizer["added_tokens"].append(
            {**tokenizer["added_tokens"][-1]} | {"id": token_id, "content": name}
        )
    file.write_text(json.dumps(tokenizer), "utf-8")
    return folder


async def prompt_ids(gateway: Gateway, **fields: Any) -> list[int]:
    body = {"prompt": BEFORE, "suffix": AFTER, "max_tokens": 3, "return_token_ids": True, **fields}
    answer = (await gateway.post("/v1/completions", body)).json()
    assert "error" not in answer, answer
    ids: list[int] = answer["choices"][0]["prompt_token_ids"]
    assert answer["usage"]["prompt_tokens"] == len(ids)
    return ids


@pytest.mark.parametrize("names", FAMILIES, ids=lambda names: names[0])
async def test_the_engine_gets_both_texts_between_the_models_tokens(
    start: StartGateway, tmp_path: Path, names: tuple[str, str, str]
) -> None:
    target = write_target(tmp_path / "target", names)
    gateway = await start(model=str(target), spec_method="none")
    tokenizer = AutoTokenizer.from_pretrained(target)
    before, after = (tokenizer.encode(t, add_special_tokens=False) for t in (BEFORE, AFTER))
    expected = [2045, *before, 2046, *after, 2047]
    assert await prompt_ids(gateway) == [tokenizer.bos_token_id, *expected]
    assert await prompt_ids(gateway, add_special_tokens=False) == expected
    assert await prompt_ids(gateway, suffix="") == tokenizer.encode(BEFORE)
    # A text that has the model's tokens is text: it cannot end its part.
    forged = await prompt_ids(gateway, suffix=tokenizer.convert_ids_to_tokens(2047))
    assert forged[-1] == 2047
    assert forged.count(2047) == 1
    assert await prompt_ids(gateway, prompt=[BEFORE], n=2) == [tokenizer.bos_token_id, *expected]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True}, "echo"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"prompt": [5, 6]}, "prompt"),
        ({"prompt": ["a"] * 2}, "prompt"),
        ({"suffix": "\ud800"}, "suffix"),
        ({"suffix": "a " * 3_000}, "prompt"),
        ({"suffix": "a" * 2_000_000}, "suffix"),
        ({"suffix": 3}, "suffix"),
    ],
)
async def test_what_does_not_go_with_a_suffix_is_named(
    start: StartGateway, tmp_path: Path, fields: dict[str, Any], param: str
) -> None:
    target = write_target(tmp_path / "target", FAMILIES[0])
    gateway = await start(model=str(target), spec_method="none")
    body = {"prompt": BEFORE, "suffix": AFTER, "max_tokens": 3, **fields}
    response = await gateway.post("/v1/completions", body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_a_model_without_such_tokens_refuses_a_suffix(gateway: Gateway) -> None:
    body = {"model": MODEL, "prompt": BEFORE, "suffix": AFTER}
    response = await gateway.post("/v1/completions", body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("suffix", "unsupported_parameter")
    assert "<|fim_prefix|>" in error["message"]


def test_a_family_is_found_only_whole() -> None:
    prefix, suffix, middle = FAMILIES[0]
    assert find_fill_in_tokens({prefix: 7, suffix: 8, middle: 9}) == FillInTokens(7, 8, 9)
    assert find_fill_in_tokens({prefix: 7, suffix: 8, FAMILIES[1][2]: 9}) is None
