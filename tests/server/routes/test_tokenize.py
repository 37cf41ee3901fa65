"""`/tokenize` and `/detokenize`."""

from typing import Any

from tests.server.gateway import Gateway

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/tokenize", {"prompt": "half \ud800"}, "prompt"),
    ("/tokenize", {"messages": [{"role": "user", "content": [{"type": "file"}]}]},
     "messages.0.content.0.type"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/detokenize", {"tokens": [1, "a"]}, "tokens.1"),
    ("/detokenize", {"tokens": [2048]}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens"),
]  # fmt: skip


async def test_text_survives_a_round_trip(gateway: Gateway) -> None:
    text = "def f(x):\n    return 'é 漢字 🙂'\n"
    there = (await gateway.post("/tokenize", {"prompt": text})).json()
    assert there["count"] == len(there["tokens"]) > 10
    assert there["max_model_len"] == gateway.runtime.info.max_model_len
    back = (await gateway.post("/detokenize", {"tokens": there["tokens"]})).json()
    assert back == {"prompt": "<|bos|>" + text}


async def test_special_tokens_can_be_left_out(gateway: Gateway) -> None:
    body = {"prompt": "hi", "add_special_tokens": False, "return_token_strs": True}
    bare = (await gateway.post("/tokenize", body)).json()
    full = (await gateway.post("/tokenize", {"prompt": "hi"})).json()
    assert full["tokens"][1:] == bare["tokens"]
    assert "".join(bare["token_strs"]) == "hi"
    assert full["token_strs"] is None


async def test_chat_is_counted_as_the_chat_route_counts_it(gateway: Gateway) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    count = (await gateway.post("/tokenize", {"messages": messages})).json()["count"]
    body = {"messages": messages, "max_tokens": 1}
    usage = (await gateway.post("/v1/chat/completions", body)).json()["usage"]
    assert usage["prompt_tokens"] == count


async def test_the_last_message_can_be_continued(gateway: Gateway) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well"}]
    closed = (await gateway.post("/tokenize", {"messages": messages})).json()["tokens"]
    body = {"messages": messages, "continue_final_message": True}
    open_ended = (await gateway.post("/tokenize", body)).json()["tokens"]
    assert open_ended == closed[: len(open_ended)]
    assert len(open_ended) < len(closed)


async def test_model_must_be_a_served_one(gateway: Gateway) -> None:
    response = await gateway.post("/tokenize", {"prompt": "a", "model": "nope"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_bad_field_is_a_400_that_names_it(gateway: Gateway) -> None:
    for path, body, param in BAD:
        response = await gateway.post(path, body)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param), (path, body, error)
