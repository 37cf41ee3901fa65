"""A recorded stream: the events of one request, which the bare app sends again."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gateway.client import PATH, TIMEOUT_S
from benchmarks.http_stream import Endpoint


@dataclass(frozen=True, slots=True)
class RecordedStream:
    """A request and the events of its answer, each with the blank line that ends it.

    The first and the last two belong together: the role comes with the first text, and `[DONE]`
    with the last.
    """

    body: bytes
    events: tuple[bytes, ...]

    def steps(self) -> tuple[tuple[bytes, ...], ...]:
        """The events of each step of the engine."""
        head, tail = self.events[:2], self.events[-2:]
        middle = tuple((event,) for event in self.events[2:-2])
        return (head, *middle, tail) if len(self.events) > 3 else (self.events,)


async def record(port: int, body: bytes) -> RecordedStream:
    """Sends the request once. Raises `RuntimeError` if the answer is not a whole stream."""
    reply = await Endpoint(f"http://127.0.0.1:{port}").post(PATH, body, TIMEOUT_S)
    if reply.status != 200 or reply.problem is not None or not reply.events:
        reason = reply.detail or reply.body[:500].decode(errors="replace")
        raise RuntimeError(f"the request was answered with {reply.status}: {reason}")
    return RecordedStream(body, tuple(b"data: " + content + b"\n\n" for _, content in reply.events))


def write(path: Path, recordings: Sequence[RecordedStream]) -> None:
    """Writes recordings as JSON."""
    plain = [
        {"body": stream.body.decode(), "events": [event.decode() for event in stream.events]}
        for stream in recordings
    ]
    path.write_text(json.dumps(plain), encoding="utf-8")


def read(path: Path) -> list[RecordedStream]:
    """Reads what `write` has written."""
    return [
        RecordedStream(entry["body"].encode(), tuple(event.encode() for event in entry["events"]))
        for entry in json.loads(path.read_text(encoding="utf-8"))
    ]
