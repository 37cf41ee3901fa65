"""Pages of items, of a response's input or of a conversation."""

from collections.abc import Sequence
from typing import Any

from engine_adapter.seam.text import short_repr
from server.errors import InvalidField
from server.openai.responses.input_items import Item


def whole_page(items: Sequence[Item], *, has_more: bool = False) -> dict[str, Any]:
    """The items as a list of OpenAI's."""
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else "",
        "last_id": items[-1]["id"] if items else "",
        "has_more": has_more,
    }


def page_of(
    ids: Sequence[str], *, after_id: str | None, limit: int, newest_first: bool
) -> tuple[Sequence[int], bool]:
    """The places of the items of a page, and whether more follow.

    Args:
        ids: of all items in order.
        after_id: the id of the last item of the page before.

    Raises:
        InvalidField: `after` is not one of the items.
    """
    places = range(len(ids))[:: -1 if newest_first else 1]
    begin = 0
    if after_id is not None:
        last_number = next((n for n, place in enumerate(places) if ids[place] == after_id), None)
        if last_number is None:
            raise InvalidField("after", f"after: there is no item {short_repr(after_id)}.")
        begin = last_number + 1
    return places[begin : begin + limit], begin + limit < len(ids)
