"""Responses as their routes return them: whole, their events, deleted, cancelled, their input."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from engine_adapter.seam.text import short_repr
from server.errors import ApiError, InvalidField, NotFound
from server.openai.responses.background import not_kept
from server.openai.responses.input_items import Item
from server.openai.responses.item_pages import page_of, whole_page
from server.openai.responses.open_items import EVENT_END, error_event
from server.openai.responses.store import BrokenChain, ResponseStore, StoredResponse, retention
from server.schema.responses import LOGPROBS

PIECE_BYTES = 2**16
"""About how many bytes of stored events are sent at once."""


def retrieve(store: ResponseStore, response_id: str, owner: str, include: Sequence[str]) -> bytes:
    """A stored response as JSON.

    Raises:
        NotFound: it is not stored.
        InvalidField: `include` asks for log probabilities, and it was generated without them.
    """
    body = _find(store, response_id, owner).body
    if LOGPROBS in include and not _has_logprobs(json.loads(body)):
        message = f"include: {short_repr(response_id)} was generated without log probabilities."
        raise InvalidField("include[]", message)
    return body


class EventReader:
    """Reads the events of a response that runs, or ran, in the background.

    Args:
        source: the events, several in one piece.
        number: of the first one.
    """

    def __init__(self, source: AsyncGenerator[bytes, None], number: int) -> None:
        self._source = source
        self._number = number

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The events until the response ends. Raises `InvalidField` if they are not kept."""
        async with aclosing(self._source) as source:
            async for piece in source:
                self._number += piece.count(EVENT_END)
                yield piece

    def failure(self, error: ApiError) -> bytes:
        """The event that ends the stream if it ends before the response."""
        return error_event(error, self._number)


def read_events(
    store: ResponseStore, response_id: str, owner: str, starting_after: int | None
) -> EventReader:
    """The reader of a response's events.

    Args:
        starting_after: the number of the last event that the client has; `None` begins at the
            first one.

    Raises:
        NotFound: the response is not stored.
        InvalidField: its events are not kept.
    """
    number = 0 if starting_after is None else starting_after + 1
    running = store.running(response_id, owner)
    if running is not None:
        return EventReader(running.follow(number), number)
    response = _find(store, response_id, owner)
    if not response.events:
        raise not_kept(response_id)
    return EventReader(_pieces(response.events.split(EVENT_END, number)[-1]), number)


async def _pieces(events: bytes) -> AsyncGenerator[bytes, None]:
    """Whole events in pieces of a bounded size, between which other requests get their turn."""
    begin = 0
    while begin < len(events):
        end = events.find(EVENT_END, begin + PIECE_BYTES)
        end = len(events) if end < 0 else end + len(EVENT_END)
        yield events[begin:end]
        begin = end
        await asyncio.sleep(0)


async def delete(store: ResponseStore, response_id: str, owner: str) -> dict[str, Any]:
    """Deletes a response; one that runs is cancelled first. Raises `NotFound`."""
    running = store.running(response_id, owner)
    if running is not None:
        await running.stop(None)
    stored = store.find(response_id, owner)
    if stored is not None:
        store.delete(stored)
    elif running is None:
        raise _not_stored(store, response_id)
    return {"id": response_id, "object": "response", "deleted": True}


async def cancel(store: ResponseStore, response_id: str, owner: str) -> bytes:
    """Cancels a response that runs in the background. Returns it as JSON.

    One that has ended is returned as it is. Raises `NotFound`, and `InvalidField` for one that did
    not run in the background.
    """
    running = store.running(response_id, owner)
    if running is not None:
        return (await running.stop(None)).body
    body = _find(store, response_id, owner).body
    if not json.loads(body)["background"]:
        message = (
            "Only a response that was created with background can be cancelled; to abort another "
            "one, close its connection."
        )
        raise InvalidField("response_id", message)
    return body


def list_input(
    store: ResponseStore,
    response_id: str,
    owner: str,
    *,
    after_id: str | None,
    limit: int,
    newest_first: bool,
) -> dict[str, Any]:
    """A page of the items that a response was generated from, those that it continued included.

    Args:
        after_id: the id of the last item of the page before.

    Raises:
        NotFound: the response, or one that it continues, is not stored.
        InvalidField: `after` is not one of its items.
    """
    items = _input(store, _find(store, response_id, owner))
    ids = [item["id"] for item in items]
    places, has_more = page_of(ids, after_id=after_id, limit=limit, newest_first=newest_first)
    return whole_page([items[place] for place in places], has_more=has_more)


def _input(store: ResponseStore, response: StoredResponse) -> list[Item]:
    try:
        *earlier, newest = store.chain(response)
    except BrokenChain as error:
        missing = short_repr(error.missing_id)
        message = f"{short_repr(response.id)} continues {missing}, which was deleted."
        raise NotFound(message, param="response_id", code="response_not_found") from None
    items: list[Item] = []
    for older in earlier:
        items += [*json.loads(older.items), *json.loads(older.output)]
    return [*items, *json.loads(newest.items)]


def _has_logprobs(response: dict[str, Any]) -> bool:
    parts = [part for item in response["output"] for part in item.get("content", ())]
    return all(part["logprobs"] for part in parts if part["type"] == "output_text" and part["text"])


def _find(store: ResponseStore, response_id: str, owner: str) -> StoredResponse:
    response = store.find(response_id, owner)
    if response is None:
        raise _not_stored(store, response_id)
    return response


def _not_stored(store: ResponseStore, response_id: str) -> NotFound:
    message = f"The response {short_repr(response_id)} is not stored. {retention(store)}"
    return NotFound(message, param="response_id", code="response_not_found")
