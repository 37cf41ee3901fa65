"""The events of a response's stream, encoded and numbered."""

from typing import Any

from server.http.event_stream import TEXT_PLACEHOLDER, json_text


class DeltaFrame:
    """An event that differs from the next one of its kind in its `delta` and its number only."""

    def __init__(self, kind: str, fields: dict[str, Any]) -> None:
        text = _event(kind, {**fields, "delta": TEXT_PLACEHOLDER}, 0)
        self._before, after = text.split(json_text(TEXT_PLACEHOLDER).encode())
        self._between, self._after = after.rsplit(b"0", 1)

    def filled(self, delta: str, number: int) -> bytes:
        """The encoded event."""
        text = json_text(delta).encode()
        return b"%b%b%b%d%b" % (self._before, text, self._between, number, self._after)


class EventWriter:
    """Encodes the events of one stream and numbers them from 0.

    With `silent` it encodes nothing, for a response in one piece.
    """

    def __init__(self, *, silent: bool = False) -> None:
        self._silent = silent
        self._next = 0
        self._written: list[bytes] = []

    def write(self, kind: str, fields: dict[str, Any]) -> None:
        """Adds an event."""
        if not self._silent:
            self._written.append(_event(kind, fields, self._number()))

    def write_delta(self, frame: DeltaFrame, delta: str) -> None:
        """Adds an event that is encoded already but for its text."""
        if not self._silent:
            self._written.append(frame.filled(delta, self._number()))

    def take(self) -> list[bytes]:
        """The events since the last call."""
        written, self._written = self._written, []
        return written

    def _number(self) -> int:
        number = self._next
        self._next += 1
        return number


def _event(kind: str, fields: dict[str, Any], number: int) -> bytes:
    # The number comes last: `DeltaFrame` finds it there.
    data = {"type": kind, **fields, "sequence_number": number}
    return f"event: {kind}\ndata: {json_text(data)}\n\n".encode()
