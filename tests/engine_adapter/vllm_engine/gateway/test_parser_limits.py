"""Every parser that vLLM offers, with texts that make parsers slow or fail."""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from engine_adapter.seam.message_parts import (
    AssistantMessage,
    CallArguments,
    CallBegin,
    TextPiece,
    assemble,
)
from engine_adapter.seam.types import Delta
from engine_adapter.vllm_engine.gateway import parser_calls
from engine_adapter.vllm_engine.gateway.output_parser import VllmParser, _UnshownText
from engine_adapter.vllm_engine.gateway.parser_calls import (
    BURST_S,
    CREDIT_S,
    LEAST_S,
    CallTooLong,
)
from engine_adapter.vllm_engine.gateway.parsing import VllmParsers
from engine_adapter.vllm_engine.patches.log_filters import taken_parser_errors
from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine.gateway.parser_texts import (
    ParserKind,
    all_parsers,
    deltas,
    hostile_texts,
    loaded,
    new_parser,
    together,
)

pytestmark = pytest.mark.needs_vllm

SHARDS = 6
HERMES = ParserKind("tool_call_parser", "hermes")
DEEP = '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 3000


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What vLLM writes to the log."""
    written: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: written.append(record.getMessage()))
    logger = logging.getLogger("vllm")
    logger.addHandler(handler)
    yield written
    logger.removeHandler(handler)


def streamed(parser: VllmParser, parts: Sequence[Delta]) -> AssistantMessage:
    return assemble([piece for part in parts for piece in parser.read(part)])


def bounded_seconds(parts: Sequence[Delta]) -> float:
    """The most CPU time that a stream takes, beside the gateway's own."""
    return BURST_S + CREDIT_S * len(parts) + LEAST_S


@pytest.mark.parametrize("shard", proved_beyond((0, 3), range(SHARDS)))
def test_no_parser_raises_or_logs_whatever_the_text(
    shard: int, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    for kind in all_parsers()[shard::SHARDS]:
        parsers = loaded(kind, monkeypatch)
        lines.clear()
        texts = dict(hostile_texts(kind, 600))
        first = next(iter(what for what in texts if what.endswith(" objects")), "objects")
        for what in ("all marks with calls", "all marks again", "pythonic", first):
            parts = deltas(parsers, texts[what])
            for read in (streamed, lambda parser, all_: parser.whole(together(all_))):
                parser = new_parser(parsers)
                message = read(parser, parts)
                if parser.failure is not None and not message.calls:
                    assert message.text or message.reasoning, (str(kind), what)
        assert lines == [], str(kind)


def test_pythonic_reads_a_bounded_number_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    parsers = loaded(ParserKind("tool_call_parser", "pythonic"), monkeypatch)
    per_s = 2e5  # characters that it reads in a second

    class Clock:
        now = 0.0

        def thread_time(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(parser_calls, "time", clock)

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def parse(*args: Any, **fields: Any) -> Any:
            text = parser._parser._stream_state.previous_text + fields["delta_text"]
            clock.now += len(text) / per_s
            return call(*args, **fields)

        return parse

    for size in (1_000, 2_000):
        num_calls = size // 9
        parts = deltas(parsers, "[" + ",".join(["f(a='b')"] * num_calls) + "]", 1)
        parser = new_parser(parsers)
        monkeypatch.setattr(parser._parser, "parse_delta", counted(parser._parser.parse_delta))
        clock.now = 0.0
        message = streamed(parser, parts)
        assert clock.now <= bounded_seconds(parts) < size**2 / per_s / 4
        assert parser.failure is None
        assert [call.arguments for call in message.calls] == ['{"a": "b"}'] * num_calls


def test_a_call_that_hermes_cannot_read_is_text_and_leaves_no_lines(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    parsers = loaded(HERMES, monkeypatch)
    parts = deltas(parsers, "Well. " + DEEP)
    lines.clear()
    capfd.readouterr()
    parser = new_parser(parsers)
    message = streamed(parser, parts)
    (call,) = message.calls
    assert message.text.startswith("Well. ")
    shown = message.text.removeprefix("Well. ")
    assert call.arguments + shown == '{"a": ' + "[" * 3000
    assert shown
    assert parser.failure is not None
    assert parser.failure.reason == "error"
    parser = new_parser(parsers)
    assert parser.whole(together(parts)) == AssistantMessage("Well. " + DEEP)
    assert parser.failure is not None
    assert lines == []
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pythonic", "[f(a=" + "(" * 300 + "1"),
        ("dots", "<dots_function_call>" + "7" * 5000),
        ("jamba", '<tool_calls>[{"name": "f", "arguments": ' + "[" * 3000),
        ("llama3_json", '{"name": "f", "parameters": ' + '{"a":' * 3000),
    ],
    ids=["pythonic", "dots", "jamba", "llama3_json"],
)
def test_text_that_an_error_has_swallowed_reaches_the_client(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    parsers = loaded(ParserKind("tool_call_parser", name), monkeypatch)
    parts = deltas(parsers, text)
    lines.clear()
    for read in (streamed, lambda parser, all_: parser.whole(together(all_))):
        message = read(new_parser(parsers), parts)
        shown = "".join(call.name + call.arguments for call in message.calls) + message.text
        assert text[-200:] in shown, (message.text[-50:], message.calls)
    assert lines == []


def test_a_regular_expression_that_takes_minutes_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time grows with the cube of the spaces: 0.3 s for 500 of them, 2.4 s for 1,000."""
    parsers = loaded(ParserKind("tool_call_parser", "dots"), monkeypatch)
    text = "<dots_function_call>" + " " * 5_000
    parser = new_parser(parsers)
    began = time.thread_time()
    assert parser.whole(together(deltas(parsers, text))) == AssistantMessage(text)
    assert time.thread_time() - began < 10 * BURST_S
    assert parser.failure is not None
    assert parser.failure.reason == "time"


def test_lines_outside_of_a_parser_are_written(
    monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    loaded(HERMES, monkeypatch)
    logger = logging.getLogger("vllm.tool_parsers.hermes_tool_parser")
    with taken_parser_errors() as errors:
        logger.error("within")
    lines.clear()
    logger.error("outside")
    assert errors == ["error"]
    assert "outside" in lines
    assert "within" not in lines


CALLS = [{"name": "f", "arguments": {"a": a}} for a in ("Bravo", "Charlie", "Delta")]


def deepseek_mark(name: str) -> str:
    return f"<\uff5ctool▁{name}\uff5c>"


TEXTS_WITH_CALLS = {
    "jamba": f"<tool_calls>{json.dumps(CALLS)}</tool_calls>",
    "hermes": "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in CALLS),
    "deepseek_v31": deepseek_mark("calls▁begin")
    + "".join(
        f"{deepseek_mark('call▁begin')}f{deepseek_mark('sep')}{json.dumps(call['arguments'])}"
        f"{deepseek_mark('call▁end')}"
        for call in CALLS
    )
    + deepseek_mark("calls▁end"),
}


@pytest.mark.parametrize("num_before", [0, 12, 20])
@pytest.mark.parametrize("name", TEXTS_WITH_CALLS)
def test_a_spent_allowance_loses_no_call(
    name: str, num_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsers = loaded(ParserKind("tool_call_parser", name), monkeypatch)
    parts = deltas(parsers, f"Alpha {TEXTS_WITH_CALLS[name]}", 4)
    parser = new_parser(parsers)
    pieces = [piece for part in parts[:num_before] for piece in parser.read(part)]
    parser._bounded._allowance.left_s = -0.1
    pieces += [piece for part in parts[num_before:] for piece in parser.read(part)]
    message = assemble(pieces)
    assert parser.failure is None
    assert message.text.strip() == "Alpha"
    assert [json.loads(call.arguments) for call in message.calls] == [
        call["arguments"] for call in CALLS
    ]


def test_text_behind_arguments_that_the_parser_has_changed_is_not_lost() -> None:
    unshown = _UnshownText()
    unshown.add('<tool_call>{"name":"f","arguments":{"a":1}}</tool_call> and then much')
    unshown.show([CallBegin(0, "i", "f"), CallArguments(0, '{"a": 1}')])
    (piece,) = unshown.take()
    assert isinstance(piece, TextPiece)
    assert piece.text.endswith(" and then much")


STOCK_SIZES = (3_125, 6_250)
SIZES = (12_500, 100_000)
SCREEN = 800
CAP_S = 3.0
"""A run without bounds is given up after so much CPU time."""


def chosen_parsers() -> list[ParserKind]:
    """All parsers, or those that `PARSERS` names, separated by commas."""
    names = os.environ.get("PARSERS", "").split(",")
    return [kind for kind in all_parsers() if names == [""] or kind.name in names]


def unbounded(parsers: VllmParsers, parts: Sequence[Delta]) -> float:
    """The CPU time of a stream as stock vLLM parses it; infinite above `CAP_S`."""
    parser = new_parser(parsers)

    def run() -> None:
        for part in parts:
            with taken_parser_errors(), suppress(Exception):
                parser._parser.parse_delta(
                    delta_text=part.text,
                    delta_token_ids=list(part.token_ids),
                    request=parser._body,
                    prompt_token_ids=parser._prompt,
                    finished=part.finish_reason is not None,
                )

    return capped(run)


def capped(call: Callable[[], Any], cap_s: float = CAP_S) -> float:
    began = time.thread_time()
    try:
        parser_calls._alarm.limited(call, cap_s)
    except CallTooLong:
        return math.inf
    return time.thread_time() - began


def longest_and_total(parser: VllmParser, parts: Sequence[Delta]) -> tuple[float, float]:
    """The CPU time of the longest `read`, and of all."""
    times = []
    for part in parts:
        began = time.thread_time()
        parser.read(part)
        times.append(time.thread_time() - began)
    return max(times), sum(times)


def slowest_text(parsers: VllmParsers, kind: ParserKind) -> str:
    """What the text is that takes most of the parser's time."""
    times = {}
    for what, text in hostile_texts(kind, SCREEN):
        parts = deltas(parsers, text)
        times[what] = min(CAP_S, unbounded(parsers, parts))
    return max(times, key=lambda what: times[what])


def seconds(value: float) -> str:
    return f"> {CAP_S:g}" if value == math.inf else f"{value:.2f}"


@pytest.mark.prove
@pytest.mark.timeout(7200)
def test_table_of_all_parsers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams in pieces of 7 characters: CPU seconds as stock vLLM parses them, and here.

    The text is the one that takes the parser longest; growth is the exponent of the time.
    """
    print("\n| parser | text | stock: 3,125 / 6,250 | growth | here: 12,500 / 100,000 | longest |")
    print("|---|---|---|---|---|---|")
    for kind in chosen_parsers():
        parsers = loaded(kind, monkeypatch)
        what = slowest_text(parsers, kind)
        texts = dict(hostile_texts(kind, SIZES[-1]))
        stock = [unbounded(parsers, deltas(parsers, texts[what][:n])) for n in STOCK_SIZES]
        growth = f"{math.log2(stock[1] / stock[0]):.1f}" if math.isfinite(stock[1]) else ""
        here = []
        for size in SIZES:
            parts = deltas(parsers, texts[what][:size])
            longest, total = longest_and_total(new_parser(parsers), parts)
            assert longest < 2 * BURST_S, (str(kind), what)
            assert total < 2 * bounded_seconds(parts), (str(kind), what)
            here.append(total)
        row = (
            str(kind),
            json.dumps(what),
            " / ".join(map(seconds, stock)),
            growth,
            " / ".join(map(seconds, here)),
            seconds(longest),
        )
        print("| " + " | ".join(row) + " |", flush=True)


@pytest.mark.prove
@pytest.mark.timeout(7200)
def test_table_of_whole_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call for 100,000 characters, which some regular expressions take long to read."""
    print("\n| parser | text | stock | here | what the client gets |")
    print("|---|---|---|---|---|")
    for kind in chosen_parsers():
        parsers = loaded(kind, monkeypatch)
        slowest = ("", 0.0, 0.0, "")
        for what, text in hostile_texts(kind, 100_000):
            everything = together(deltas(parsers, text))
            parser = new_parser(parsers)
            began = time.thread_time()
            parser.whole(everything)
            here = time.thread_time() - began
            assert here < 2 * BURST_S, (str(kind), what)
            failed = parser.failure is not None and parser.failure.reason == "time"
            if here > slowest[2]:
                slowest = (what, math.inf if failed else here, here, "its text" if failed else "")
        if slowest[2] > LEAST_S:
            what, stock, here, gets = slowest
            row = (str(kind), json.dumps(what), seconds(stock), seconds(here), gets)
            print("| " + " | ".join(row) + " |", flush=True)
