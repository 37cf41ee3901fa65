"""Media in chats, responses and messages."""

from typing import Any

import pytest

from engine_adapter.seam.media import Modality
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway
from tests.server.pictures import animation, bomb, data_url, encoded, image_part
from tests.server.recordings import PLAYLISTS, audio_part, compressed, tone, wav
from tests.server.videos import video, video_part

TEXT = {"type": "text", "text": "What is this?"}


@pytest.fixture
async def pictured(start: StartGateway) -> Gateway:
    """A gateway whose target takes three items of each modality."""
    return await start(engine_args={"fake_media": 3})


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


async def test_a_request_may_change_how_its_media_are_processed(pictured: Gateway) -> None:
    content = [TEXT, image_part(encoded(28, 28))]
    of_server = await prompt_tokens(pictured, content)
    halved = {"mm_processor_kwargs": {"max_pixels": 14 * 14, "do_pan_and_scan": None}}
    assert await prompt_tokens(pictured, content, **halved) == of_server + 3
    body = {"messages": [{"role": "user", "content": content}], **halved}
    assert (await pictured.post("/tokenize", body)).json()["count"] == of_server + 3
    part = {"type": "input_image", "image_url": data_url(encoded(28, 28))}
    item = {"role": "user", "content": [{"type": "input_text", "text": TEXT["text"]}, part]}
    response = (await pictured.post("/v1/responses", {"input": [item], **halved})).json()
    assert response["usage"]["input_tokens"] == of_server + 3
    counted = await pictured.post("/v1/responses/input_tokens", {"input": [item], **halved})
    assert counted.json()["input_tokens"] == of_server + 3
    # Without media there is nothing to process.
    assert await prompt_tokens(pictured, [TEXT], **halved) == await prompt_tokens(pictured, [TEXT])


@pytest.mark.parametrize(
    ("arguments", "param", "reason"),
    [
        ({"patch_size": 7}, "mm_processor_kwargs", "--mm-processor-kwargs"),
        ({"max_pixels": 2**26}, "mm_processor_kwargs.max_pixels", "less than or equal to 33554432"),
        ({"max_pixels": 0}, "mm_processor_kwargs.max_pixels", "greater than or equal to 1"),
        ({"do_pan_and_scan": 1}, "mm_processor_kwargs.do_pan_and_scan", "valid boolean"),
        ([], "mm_processor_kwargs", "dictionary"),
        ({"max_pixels": 1}, "mm_processor_kwargs", "processor refuses the media"),
    ],
)
async def test_arguments_of_the_processor_that_cannot_be_used_are_a_400(
    pictured: Gateway, arguments: Any, param: str, reason: str
) -> None:
    response = await pictured.chat([image_part()], mm_processor_kwargs=arguments)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert reason in error["message"]


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


async def test_a_recording_counts_as_its_tokens(pictured: Gateway) -> None:
    plain = await prompt_tokens(pictured, [TEXT])
    of_second = await prompt_tokens(pictured, [TEXT, audio_part()]) - plain
    of_four = await prompt_tokens(pictured, [TEXT, audio_part(wav(tone(4)))]) - plain
    assert of_second > 0
    assert of_four - of_second == 3
    url = data_url(compressed("ogg", 4), "audio/ogg")
    part = {"type": "audio_url", "audio_url": {"url": url}}
    assert await prompt_tokens(pictured, [TEXT, part]) - plain == of_four


async def test_a_video_counts_as_its_frames(pictured: Gateway) -> None:
    """The fake engine reads one frame in a second."""
    plain = await prompt_tokens(pictured, [TEXT])
    used = [
        await prompt_tokens(pictured, [TEXT, video_part(video(count))]) - plain
        for count in (5, 15, 25)
    ]
    assert used[2] - used[1] == used[1] - used[0] == 3 * 2


async def test_a_chat_has_media_of_all_modalities(pictured: Gateway) -> None:
    content = [audio_part(), TEXT, image_part(), audio_part(wav(tone(4))), video_part()]
    body = {"messages": [{"role": "user", "content": content}]}
    counted = (await pictured.post("/tokenize", body)).json()
    assert counted["count"] == await prompt_tokens(pictured, content)
    plain = await prompt_tokens(pictured, [TEXT])
    each = [await prompt_tokens(pictured, [TEXT, part]) - plain for part in content if part != TEXT]
    assert counted["count"] == plain + sum(each)


DATA, URL, VIDEO = "input_audio.data", "audio_url.url", "video_url.url"


@pytest.mark.parametrize(
    ("part", "field", "reason"),
    [
        (audio_part(b"x" * 100), DATA, "none of the formats"),
        (audio_part(encoded()), DATA, "none of the formats"),
        (audio_part(PLAYLISTS["sdp"]), DATA, "none of the formats"),
        ({"type": "input_audio", "input_audio": {"data": "*"}}, DATA, "not base64"),
        ({"type": "audio_url", "audio_url": {"url": "http://127.0.0.1/a"}}, URL, "not allowed"),
        ({"type": "audio_url", "audio_url": {"url": "file:///etc/passwd"}}, URL, "only data, http"),
        (video_part(b"x" * 100), VIDEO, "none of the formats"),
        (video_part(wav(tone(1))), VIDEO, "none of the formats"),
        ({"type": "video_url", "video_url": {"url": "http://127.0.0.1/a"}}, VIDEO, "not allowed"),
    ],
    ids=[
        "letters",
        "picture",
        "playlist",
        "base64",
        "loopback",
        "file",
        "letters of a video",
        "no video",
        "loopback of a video",
    ],
)
async def test_a_hostile_recording_or_video_is_a_400_that_names_its_field(
    pictured: Gateway, part: Any, field: str, reason: str
) -> None:
    response = await pictured.chat([TEXT, part])
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, f"messages.0.content.1.{field}")
    assert reason in error["message"]
    noun = "video" if field == VIDEO else "recording"
    assert noun in error["message"] or reason == "not base64"


async def test_recordings_of_a_request_are_bounded_together(
    pictured: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = pictured.runtime.media._max_sizes
    monkeypatch.setitem(limits, Modality.AUDIO, (3, "seconds"))
    assert await prompt_tokens(pictured, [audio_part(), audio_part(wav(tone(2)))])
    response = await pictured.chat(
        [audio_part(wav(tone(2))), image_part(), audio_part(wav(tone(2)))]
    )
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages.0.content.2.input_audio.data")
    assert "the recordings have 4 seconds together; at most 3 are read" in error["message"]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([video_part(video(40))], "4 frames of 64 x 48 pixels are 12288 pixels; 9216 can be read"),
        ([video_part()] * 2, "the videos have 12288 pixels together; at most 9216 are read"),
    ],
    ids=["of one", "of two"],
)
async def test_the_pixels_of_videos_are_bounded_by_a_setting(
    start: StartGateway, parts: list[Any], reason: str
) -> None:
    gateway = await start(engine_args={"fake_media": 3}, max_video_pixels=3 * 64 * 48)
    assert await prompt_tokens(gateway, [video_part(video(30))])
    response = await gateway.chat(parts)
    error = response.json()["error"]
    field = f"messages.0.content.{len(parts) - 1}.{VIDEO}"
    assert (response.status_code, error["param"]) == (400, field)
    assert f"{reason} (--max-video-pixels)" in error["message"]


async def test_more_recordings_than_the_limit_are_refused(pictured: Gateway) -> None:
    response = await pictured.chat([image_part(), *[audio_part()] * 4])
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages.0.content.4.input_audio.data")
    assert "has 4 recordings; at most 3 are read (--limit-mm-per-prompt)" in error["message"]


async def test_a_target_of_text_takes_no_recording(gateway: Gateway) -> None:
    response = await gateway.chat([TEXT, audio_part()])
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages.0.content.1.input_audio.data")
    assert "this model takes no recordings, only text." in error["message"]


async def test_other_parts_are_refused_by_their_type(pictured: Gateway) -> None:
    part = {"type": "file", "file": {"file_id": "file-1"}}
    response = await pictured.chat([TEXT, part])
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages.0.content.1.type")
    assert (
        "only parts of the types text, image_url, input_audio, audio_url, video_url"
        in error["message"]
    )


def counted(gateway: Gateway, modality: str = "image") -> dict[str, float | None]:
    return {
        outcome: gateway.sample("specgate_media_total", modality=modality, outcome=outcome)
        for outcome in ("read", "not_fetched", "unusable")
    }


def added_tokens(gateway: Gateway) -> float:
    tokens = gateway.sample("specgate_media_tokens_total")
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
        assert pictured.sample("specgate_media_seconds_count", stage=stage) == count


@pytest.mark.parametrize(
    ("part", "modality", "outcome"),
    [
        (image_part(b"<svg/>"), "image", "unusable"),
        (audio_part(b"<svg/>"), "audio", "unusable"),
        (
            {"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}},
            *("image", "not_fetched"),
        ),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,*"}},
            *("image", "not_fetched"),
        ),
        ({"type": "input_audio", "input_audio": {"data": "*"}}, "audio", "not_fetched"),
        (video_part(b"x"), "video", "unusable"),
    ],
    ids=["svg", "no recording", "loopback", "base64", "base64 of a recording", "no video"],
)
async def test_an_item_that_is_not_used_is_counted_once(
    pictured: Gateway, part: Any, modality: str, outcome: str
) -> None:
    response = await pictured.chat([TEXT, image_part(), part])
    assert response.status_code == 400
    nothing = {"read": 0, "not_fetched": 0, "unusable": 0}
    for each in ("image", "audio", "video"):
        expected = nothing | ({outcome: 1} if each == modality else {})
        assert counted(pictured, each) == expected


async def test_pictures_that_were_prepared_leave_their_place(pictured: Gateway) -> None:
    """Broken ones too: else the third request would wait for ever."""
    for _ in range(3):
        assert (await pictured.chat([TEXT, image_part(b"<svg/>")])).status_code == 400
    assert await prompt_tokens(pictured, [TEXT, image_part()])
