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


def page(
    items: Sequence[Item], *, after_id: str | None, limit: int, newest_first: bool
) -> dict[str, Any]:
    """A page of the items.

    Args:
        after_id: the id of the last item of the page before.

    Raises:
        InvalidField: `after` is not one of the items.
    """
    if newest_first:
        items = items[::-1]
    begin = 0
    if after_id is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after_id]
        if not places:
            raise InvalidField("after", f"after: there is no item {short_repr(after_id)}.")
        begin = places[0] + 1
    return whole_page(items[begin : begin + limit], has_more=begin + limit < len(items))
