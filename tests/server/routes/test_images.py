"""Pictures in chats, responses and messages."""

from typing import Any

import pytest

from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway
from tests.server.pictures import animation, bomb, data_url, encoded, image_part

TEXT = {"type": "text", "text": "What is this?"}


@pytest.fixture
async def pictured(start: StartGateway) -> Gateway:
    """A gateway whose target takes three pictures."""
    return await start(engine_args={"fake_images": 3})


async def prompt_tokens(gateway: Gateway, content: Any, **fields: Any) -> int:
    response = await gateway.chat(content, max_tokens=2, **fields)
    assert response.status_code == 200, response.text
    count: int = response.json()["usage"]["prompt_tokens"]
    return count


async def test_a_picture_counts_as_its_tokens(pictured: Gateway) -> None:
    plain = await prompt_tokens(pictured, [TEXT])
    small = await prompt_tokens(pictured, [TEXT, image_part()])
    large = await prompt_tokens(pictured, [TEXT, image_part(encoded(280, 140))])
    assert small > plain
    assert large - small == 10 * 5 - 2 * 2
    (request,) = [await prompt_tokens(pictured, [image_part(), TEXT])]
    assert request == small


async def test_tokenize_counts_as_the_chat_does(pictured: Gateway) -> None:
    content = [TEXT, image_part(), image_part(encoded(28, 28))]
    body = {"messages": [{"role": "user", "content": content}]}
    counted = (await pictured.post("/tokenize", body)).json()
    assert counted["count"] == await prompt_tokens(pictured, content)


async def test_the_text_of_a_placeholder_is_text(pictured: Gateway) -> None:
    written = {"type": "text", "text": "<|pad|>"}
    of_picture = await prompt_tokens(pictured, [TEXT, image_part()])
    of_picture -= await prompt_tokens(pictured, [TEXT])
    with_picture = await prompt_tokens(pictured, [written, image_part()])
    assert with_picture == await prompt_tokens(pictured, [written]) + of_picture


async def test_responses_and_messages_take_pictures(pictured: Gateway) -> None:
    chat = await prompt_tokens(pictured, [TEXT, image_part()])
    part = {"type": "input_image", "image_url": data_url(encoded()), "detail": "high"}
    item = {"role": "user", "content": [{"type": "input_text", "text": TEXT["text"]}, part]}
    response = (await pictured.post("/v1/responses", {"input": [item]})).json()
    assert response["usage"]["input_tokens"] == chat
    items = await pictured.client.get(f"/v1/responses/{response['id']}/input_items")
    shown = {"type": "input_image", "image_url": part["image_url"], "detail": "auto"}
    assert items.json()["data"][0]["content"][1] == shown
    counted = await pictured.post("/v1/responses/input_tokens", {"input": [item]})
    assert counted.json()["input_tokens"] == chat

    data = data_url(encoded()).partition(",")[2]
    source = {"type": "base64", "media_type": "image/png", "data": data}
    messages = [{"role": "user", "content": [TEXT, {"type": "image", "source": source}]}]
    body = {"messages": messages, "max_tokens": 2}
    answer = (await pictured.post("/v1/messages", body)).json()
    assert answer["usage"]["input_tokens"] == chat
    counted = await pictured.post("/v1/messages/count_tokens", {"messages": messages})
    assert counted.json()["input_tokens"] == chat


async def test_results_of_tools_may_be_pictures(pictured: Gateway) -> None:
    call = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    source = {"type": "url", "url": data_url(encoded())}
    result = {"type": "tool_result", "tool_use_id": "c", "is_error": True}
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result | {"content": [{"type": "image", "source": source}]}]},
    ]
    response = await pictured.post("/v1/messages", {"messages": messages, "max_tokens": 2})
    assert response.status_code == 200, response.text
    output = {"type": "function_call_output", "call_id": "c"}
    items = [
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        output | {"output": [{"type": "input_image", "image_url": data_url(encoded())}]},
    ]
    response = await pictured.post("/v1/responses", {"input": items, "max_output_tokens": 20})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (image_part(b"<svg/>"), "none of the formats"),
        (image_part(bomb()), "more pixels"),
        (image_part(encoded(300, 300)[:500]), "damaged"),
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}, "not allowed"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "only data, http"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,*"}}, "not base64"),
    ],
    ids=["svg", "bomb", "damaged", "loopback", "file", "base64"],
)
async def test_a_hostile_picture_is_a_400_that_names_its_field(
    pictured: Gateway, part: Any, reason: str
) -> None:
    response = await pictured.chat([TEXT, part])
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages.0.content.1.image_url.url")
    assert reason in error["message"]


async def test_the_first_picture_of_an_animation_is_used(pictured: Gateway) -> None:
    assert await prompt_tokens(pictured, [image_part(animation())])


async def test_more_pictures_than_the_limit_are_refused(pictured: Gateway) -> None:
    response = await pictured.chat([image_part()] * 4)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages.0.content.3.image_url.url")
    assert "at most 3 are read (--limit-mm-per-prompt)" in error["message"]


async def test_a_target_of_text_takes_no_picture(gateway: Gateway) -> None:
    response = await gateway.chat([TEXT, image_part()])
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages.0.content.1.image_url.url")
    assert "takes no pictures" in error["message"]


async def test_a_prompt_with_pictures_is_not_cut(pictured: Gateway) -> None:
    response = await pictured.chat([TEXT, image_part()], truncate_prompt_tokens=4)
    assert (response.status_code, response.json()["error"]["param"]) == (
        400,
        "truncate_prompt_tokens",
    )


async def test_pictures_that_fill_the_context_are_refused(pictured: Gateway) -> None:
    response = await pictured.chat([image_part(encoded(1400, 1400))])
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")


def counted(gateway: Gateway) -> dict[str, float | None]:
    return {
        outcome: gateway.sample("specgate_images_total", outcome=outcome)
        for outcome in ("read", "not_fetched", "unusable")
    }


def added_tokens(gateway: Gateway) -> float:
    tokens = gateway.sample("specgate_image_tokens_total")
    assert tokens is not None
    return tokens


async def test_pictures_their_tokens_and_their_time_are_counted(pictured: Gateway) -> None:
    assert counted(pictured) == {"read": 0, "not_fetched": 0, "unusable": 0}
    await prompt_tokens(pictured, [TEXT, image_part(), image_part()])
    of_two_small = added_tokens(pictured)
    await prompt_tokens(pictured, [TEXT, image_part(), image_part(encoded(280, 140))])
    of_small_and_large = added_tokens(pictured) - of_two_small
    assert of_two_small > 0
    assert of_small_and_large - of_two_small == 10 * 5 - 2 * 2
    assert counted(pictured) == {"read": 4, "not_fetched": 0, "unusable": 0}
    for stage, count in {"fetch": 0, "wait": 2, "process": 2}.items():
        assert pictured.sample("specgate_image_seconds_count", stage=stage) == count


@pytest.mark.parametrize(
    ("part", "outcome"),
    [
        (image_part(b"<svg/>"), "unusable"),
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}, "not_fetched"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,*"}}, "not_fetched"),
    ],
    ids=["svg", "loopback", "base64"],
)
async def test_a_picture_that_is_not_used_is_counted_once(
    pictured: Gateway, part: Any, outcome: str
) -> None:
    response = await pictured.chat([TEXT, image_part(), part])
    assert response.status_code == 400
    assert counted(pictured) == {"read": 0, "not_fetched": 0, "unusable": 0, outcome: 1}


async def test_pictures_that_were_prepared_leave_their_place(pictured: Gateway) -> None:
    """Broken ones too: else the third request would wait for ever."""
    for _ in range(3):
        assert (await pictured.chat([TEXT, image_part(b"<svg/>")])).status_code == 400
    assert await prompt_tokens(pictured, [TEXT, image_part()])
