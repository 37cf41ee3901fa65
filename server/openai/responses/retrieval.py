"""Stored responses as their routes return them: whole, deleted, cancelled, or their input."""

import json
from collections.abc import Sequence
from typing import Any

from engine_adapter.seam.text import short_repr
from server.errors import InvalidField, NotFound
from server.openai.responses.input_items import Item
from server.openai.responses.prepare import retention
from server.openai.responses.store import BrokenChain, ResponseStore, StoredResponse
from server.schema.responses import LOGPROBS


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


def delete(store: ResponseStore, response_id: str, owner: str) -> dict[str, Any]:
    """Deletes a stored response. Raises `NotFound`."""
    store.delete(_find(store, response_id, owner))
    return {"id": response_id, "object": "response", "deleted": True}


def cancel(store: ResponseStore, response_id: str, owner: str) -> None:
    """Refuses, as OpenAI does for a response that does not run in the background.

    Raises `NotFound`, else `InvalidField`.
    """
    _find(store, response_id, owner)
    message = (
        "Only a response that runs in the background can be cancelled, and this server has none; "
        "to abort a response, close its connection."
    )
    raise InvalidField("response_id", message)


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
    if newest_first:
        items.reverse()
    begin = 0
    if after_id is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after_id]
        if not places:
            raise InvalidField(
                "after", f"after: the response has no input item {short_repr(after_id)}."
            )
        begin = places[0] + 1
    page = items[begin : begin + limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": begin + limit < len(items),
    }


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
        message = f"The response {short_repr(response_id)} is not stored. {retention(store)}"
        raise NotFound(message, param="response_id", code="response_not_found")
    return response
