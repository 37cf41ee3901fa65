"""Sides: how they are given, and how a server's abilities are found."""

import asyncio
from typing import Any

import pytest

from benchmarks.load import sides
from benchmarks.load.sides import Side, parse_side, prepare
from tests.benchmarks.load.scripted import STREAM_HEAD, chunks, plain, served

URL = "http://127.0.0.1:8000"


def test_a_side_is_a_name_an_address_or_an_object() -> None:
    assert parse_side("ngram", URL, "KEY") == Side(
        "ngram", URL, body={"spec_decode": {"proposer": "ngram"}}, key_variable="KEY"
    )
    assert parse_side("other=https://host/v1", URL, None) == Side("other", "https://host/v1")
    given = '{"model": "m", "body": {"top_p": 0.5}, "body_by_label": {"quote": {"n": 1}}}'
    side = parse_side(f"mine={given}", URL, None)
    assert (side.url, side.model) == (URL, "m")
    assert side.fields_for("free") == {"top_p": 0.5}
    assert side.fields_for("quote") == {"top_p": 0.5, "n": 1}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("=http://host", "a name has letters"),
        ("a|b=http://host", "a name has letters"),
        ("a=host:80", "no address and no JSON object"),
        ("a={", "a: is not valid JSON"),
        ('a={"urls": "x"}', "a: unknown field 'urls'; the fields are url"),
        ('a={"url": 3}', "a: url must be a text, got 3"),
        ('a={"model": ""}', "a: model must be a text"),
        ('a={"body": []}', "a: body must be an object"),
        ('a={"body_by_label": {"x": 1}}', r"a: body_by_label\.x must be an object"),
        ('a={"body": {"stream": false}}', r"a: body\.stream is set by the harness"),
        ('a={"body_by_label": {"x": {"model": "m"}}}', r"body_by_label\.x\.model is set by"),
        ('a={"key": "secret"}', "unknown field 'key'"),
    ],
)
def test_a_wrong_side_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_side(text, URL, None)


def test_the_key_comes_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side("a", URL, key_variable="BENCH_TEST_KEY")
    monkeypatch.delenv("BENCH_TEST_KEY", raising=False)
    with pytest.raises(ValueError, match="a: the variable BENCH_TEST_KEY is not set"):
        side.endpoint()
    monkeypatch.setenv("BENCH_TEST_KEY", "secret")
    side.endpoint()
    assert "secret" not in repr(side)


class Server:
    """Refuses bodies with one of the `unknown` fields."""

    def __init__(self, *unknown: str, models: Any = None) -> None:
        self.unknown = unknown
        self.models = models or {"data": [{"id": "its-model"}]}
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if head.startswith("GET /v1/models"):
            writer.write(plain("200 OK", self.models))
        elif head.startswith("GET"):
            writer.write(plain("404 Not Found", {}))
        elif any(name in {**body, **body.get("stream_options", {})} for name in self.unknown):
            writer.write(plain("400 Bad Request", {"error": {"message": "unknown\nfield"}}))
        else:
            self.bodies.append(body)
            writer.write(STREAM_HEAD + chunks(2))


@pytest.mark.parametrize(
    ("unknown", "refused"),
    [
        ((), ()),
        (("continuous_usage_stats",), ("continuous_usage_stats",)),
        (("ignore_eos",), ("ignore_eos", "skip_special_tokens")),
        (
            ("stream_options", "ignore_eos"),
            (
                "continuous_usage_stats",
                "ignore_eos",
                "include_usage",
                "skip_special_tokens",
                "stream_options",
            ),
        ),
    ],
)
async def test_fields_that_a_server_refuses_are_left_out_and_named(
    unknown: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    server = Server(*unknown)
    async with served(server) as url:
        target = await prepare(Side("a", f"{url}/v1", body={"top_k": 1}), 5.0, ignore_eos=True)
    assert target.model == "its-model"
    assert target.refused == refused
    assert not set(refused) & {*target.extras, *target.extras.get("stream_options", {})}
    assert server.bodies[0]["top_k"] == 1


async def test_a_server_that_refuses_everything_is_reported_with_its_message() -> None:
    async with served(Server("messages")) as url:
        with pytest.raises(
            RuntimeError, match=r"--side a: .*/v1/chat/completions: 400: unknown field"
        ):
            await prepare(Side("a", url), 5.0, ignore_eos=False)


async def test_a_server_without_models_needs_a_model() -> None:
    server = Server(models={"data": []})
    async with served(server) as url:
        with pytest.raises(
            RuntimeError, match=r"/v1/models: 200: .*; if the server lists no models, name one"
        ):
            await prepare(Side("a", url), 5.0, ignore_eos=False)
        target = await prepare(Side("a", url, "mine"), 5.0, ignore_eos=False)
    assert target.model == server.bodies[0]["model"] == "mine"


async def test_an_unreachable_server_is_reported() -> None:
    with pytest.raises(RuntimeError, match=r"--side a: .*:9/v1/models: connection:"):
        await prepare(Side("a", "http://127.0.0.1:9"), 5.0, ignore_eos=False)


ODD = {
    "404 Not Found": "/v1/chat/completions: 404: Not Found$",
    "200 OK": r"/v1/chat/completions: the answer is not a stream of events \(200: OK\)$",
}


@pytest.mark.parametrize("status", ODD)
async def test_an_answer_that_is_not_a_stream_is_reported(status: str) -> None:
    async def answer(head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())

    async with served(answer) as url:
        with pytest.raises(RuntimeError, match=ODD[status]):
            await prepare(Side("a", url, "m"), 5.0, ignore_eos=False)


async def test_a_server_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "ASK_LIMIT_S", 0.1)

    async def answer(head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with served(answer) as url, asyncio.timeout(30):
        with pytest.raises(RuntimeError, match=r"/v1/models: timeout: no end after 0\.1 s$"):
            await prepare(Side("a", url), 0.2, ignore_eos=False)
        with pytest.raises(RuntimeError, match=r"/completions: timeout: no end after 0\.2 s$"):
            await prepare(Side("a", url, "m"), 0.2, ignore_eos=False)
