"""`/v1/conversations`: lists of items that responses continue, in the store of responses."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine_adapter.seam.text import short_repr
from server.errors import InvalidField, NotFound
from server.openai.responses.input_items import Item, input_items, new_id
from server.openai.responses.item_pages import page_of, whole_page
from server.openai.responses.store import ResponseStore, StoredConversation, retention
from server.schema.bounds import MAX_INPUT_ITEMS, too_many
from server.schema.conversations import CreateConversationRequest, CreateItemsRequest
from server.schema.json_values import surrogate_path
from server.schema.response_items import InputItem
from server.text import is_unicode


def create(store: ResponseStore, owner: str, body: CreateConversationRequest) -> dict[str, Any]:
    """Begins a conversation. Raises `InvalidField`."""
    if not store.is_enabled:
        raise InvalidField(None, retention(store), "unsupported_parameter")
    conversation = StoredConversation(
        id=new_id("conv"),
        owner=owner,
        created=int(time.time()),
        metadata=_metadata(body.metadata),
        items=_new_items(body.items or (), {}),
    )
    if not store.add(conversation):
        raise _too_large(store, conversation)
    return _shown(conversation)


def retrieve(store: ResponseStore, conversation_id: str, owner: str) -> dict[str, Any]:
    """The conversation without its items. Raises `NotFound`."""
    return _shown(find(store, conversation_id, owner))


def update(
    store: ResponseStore, conversation_id: str, owner: str, metadata: Mapping[str, str] | None
) -> dict[str, Any]:
    """Replaces the metadata. Raises `NotFound` and `InvalidField`."""
    conversation = find(store, conversation_id, owner)
    return _changed(store, replace(conversation, metadata=_metadata(metadata)))


def delete(store: ResponseStore, conversation_id: str, owner: str) -> dict[str, Any]:
    """Deletes the conversation with its items. Raises `NotFound`."""
    store.delete(find(store, conversation_id, owner))
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


def add_items(
    store: ResponseStore, conversation_id: str, owner: str, body: CreateItemsRequest
) -> dict[str, Any]:
    """Adds items at the end, and returns them. Raises `NotFound` and `InvalidField`."""
    conversation = find(store, conversation_id, owner)
    items = _new_items(body.items, conversation.items)
    _changed(store, replace(conversation, items={**conversation.items, **items}))
    return whole_page([json.loads(item) for item in items.values()])


def list_items(
    store: ResponseStore,
    conversation_id: str,
    owner: str,
    *,
    after_id: str | None,
    limit: int,
    newest_first: bool,
) -> dict[str, Any]:
    """A page of its items; see `page_of`. Raises `NotFound` and `InvalidField`."""
    items = find(store, conversation_id, owner).items
    ids = list(items)
    places, has_more = page_of(ids, after_id=after_id, limit=limit, newest_first=newest_first)
    return whole_page([json.loads(items[ids[place]]) for place in places], has_more=has_more)


def retrieve_item(store: ResponseStore, conversation_id: str, owner: str, item_id: str) -> bytes:
    """One item as JSON. Raises `NotFound`."""
    return _item(find(store, conversation_id, owner), item_id)


def delete_item(
    store: ResponseStore, conversation_id: str, owner: str, item_id: str
) -> dict[str, Any]:
    """Deletes an item, and returns the conversation. Raises `NotFound`."""
    conversation = find(store, conversation_id, owner)
    _item(conversation, item_id)
    items = {name: item for name, item in conversation.items.items() if name != item_id}
    return _changed(store, replace(conversation, items=items))


def find(
    store: ResponseStore, conversation_id: str, owner: str, param: str = "conversation_id"
) -> StoredConversation:
    """The owner's conversation. Raises `NotFound`, naming `param`."""
    conversation = store.find_conversation(conversation_id, owner)
    if conversation is None:
        message = (
            f"{param}: the conversation {short_repr(conversation_id)} is not stored. "
            f"{retention(store)}"
        )
        raise NotFound(message, param=param, code="conversation_not_found")
    return conversation


def append(store: ResponseStore, conversation_id: str, owner: str, items: Iterable[Item]) -> None:
    """Adds the items of a response that has ended.

    Nothing is added to a conversation that was deleted meanwhile. One that has no room for them is
    deleted: without them it would be another one.
    """
    conversation = store.find_conversation(conversation_id, owner)
    if conversation is None:
        return
    all_items = dict(conversation.items)
    for item in items:
        item_id = item["id"]
        if item_id in all_items:  # another response has added it meanwhile
            item_id = new_id("item")
        all_items[item_id] = json.dumps({**item, "id": item_id}).encode()
    if not store.replace(replace(conversation, items=all_items)):
        store.delete(conversation)


def check_new_items(items: Sequence[Item], earlier_ids: Iterable[str], param: str) -> None:
    """Raises `InvalidField` for too many items, or one that has the id of another one.

    Args:
        earlier_ids: of the items of the conversation that they are to be added to.
    """
    ids = set(earlier_ids)
    if (count := len(ids) + len(items)) > MAX_INPUT_ITEMS:
        reason = too_many("items with those of the conversation", MAX_INPUT_ITEMS, count)
        raise InvalidField(param, f"{param} {reason}.")
    for number, item in enumerate(items):
        if item["id"] in ids:
            name = f"{param}.{number}.id"
            raise InvalidField(name, f"{name}: another item has this id; leave it out.")
        ids.add(item["id"])


def _new_items(items: Sequence[InputItem], earlier: Mapping[str, bytes]) -> dict[str, bytes]:
    """Id -> item as JSON, of items that a client adds."""
    full_items = input_items(items, "items")
    check_new_items(full_items, earlier, "items")
    if not is_unicode(json.dumps(full_items, ensure_ascii=False)):
        path = surrogate_path({"items": full_items})
        raise InvalidField(path, f"{path} contains a lone surrogate.")
    return {item["id"]: json.dumps(item).encode() for item in full_items}


def _item(conversation: StoredConversation, item_id: str) -> bytes:
    item = conversation.items.get(item_id)
    if item is None:
        message = f"The conversation has no item {short_repr(item_id)}."
        raise NotFound(message, param="item_id", code="item_not_found")
    return item


def _changed(store: ResponseStore, conversation: StoredConversation) -> dict[str, Any]:
    if not store.replace(conversation):
        raise _too_large(store, conversation)
    return _shown(conversation)


def _too_large(store: ResponseStore, conversation: StoredConversation) -> InvalidField:
    message = (
        f"items: the conversation would have {conversation.num_bytes:,} bytes; this server stores "
        f"{store.max_bytes:,} (--max-stored-response-bytes)."
    )
    return InvalidField("items", message)


def _metadata(pairs: Mapping[str, str] | None) -> bytes:
    if not is_unicode(json.dumps(pairs, ensure_ascii=False)):
        raise InvalidField("metadata", "metadata contains a lone surrogate.")
    return json.dumps(pairs or {}).encode()


def _shown(conversation: StoredConversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created,
        "metadata": json.loads(conversation.metadata),
    }
