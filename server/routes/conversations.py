"""`/v1/conversations`: conversations that responses continue, and their items."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from server.contract.answers import KEY_LIMIT_ERRORS, answers
from server.http.auth import key_owner
from server.openai.responses import stored_conversations as conversations
from server.schema import response_answers as schema
from server.schema.conversations import (
    CreateConversationRequest,
    CreateItemsRequest,
    UpdateConversationRequest,
)
from server.schema.responses import MAX_PAGE, PAGE
from server.state import StartedRuntime

router = APIRouter(tags=["Responses"])

PATH = "/v1/conversations"
ONE = PATH + "/{conversation_id}"
ITEMS = ONE + "/items"
ITEM = ITEMS + "/{item_id}"
NOT_FOUND = {404: "conversation_not_found"}
NO_ITEM = {404: "conversation_not_found, item_not_found"}


@router.post(
    PATH,
    response_model=None,
    responses=answers(
        schema.ConversationObject,
        id_for=dict.fromkeys(
            (
                *("retrieve_conversation", "update_conversation", "delete_conversation"),
                *("create_conversation_items", "list_conversation_items"),
            ),
            "conversation_id",
        ),
        errors=KEY_LIMIT_ERRORS,
    ),
)
async def create_conversation(
    request: Request, body: CreateConversationRequest, runtime: StartedRuntime
) -> dict[str, Any]:
    """Begins a conversation, empty or with items."""
    return conversations.create(runtime.responses, key_owner(request.scope), body)


@router.get(
    ONE,
    operation_id="retrieve_conversation",
    response_model=None,
    responses=answers(schema.ConversationObject, errors=NOT_FOUND),
)
async def get_conversation(
    request: Request, conversation_id: str, runtime: StartedRuntime
) -> dict[str, Any]:
    """A conversation without its items."""
    return conversations.retrieve(runtime.responses, conversation_id, key_owner(request.scope))


@router.post(
    ONE,
    response_model=None,
    responses=answers(schema.ConversationObject, errors={**NOT_FOUND, **KEY_LIMIT_ERRORS}),
)
async def update_conversation(
    request: Request,
    conversation_id: str,
    body: UpdateConversationRequest,
    runtime: StartedRuntime,
) -> dict[str, Any]:
    """Replaces the metadata of a conversation."""
    owner = key_owner(request.scope)
    return conversations.update(runtime.responses, conversation_id, owner, body.metadata)


@router.delete(
    ONE,
    response_model=None,
    responses=answers(schema.DeletedConversation, errors=NOT_FOUND),
)
async def delete_conversation(
    request: Request, conversation_id: str, runtime: StartedRuntime
) -> dict[str, Any]:
    """Deletes a conversation with its items."""
    return conversations.delete(runtime.responses, conversation_id, key_owner(request.scope))


@router.post(
    ITEMS,
    response_model=None,
    responses=answers(schema.InputItemList, errors={**NOT_FOUND, **KEY_LIMIT_ERRORS}),
)
async def create_conversation_items(
    request: Request, conversation_id: str, body: CreateItemsRequest, runtime: StartedRuntime
) -> dict[str, Any]:
    """Adds items at the end of a conversation."""
    owner = key_owner(request.scope)
    return conversations.add_items(runtime.responses, conversation_id, owner, body)


@router.get(
    ITEMS,
    operation_id="list_conversation_items",
    response_model=None,
    responses=answers(schema.InputItemList, errors={400: "", **NOT_FOUND}),
)
async def get_conversation_items(
    request: Request,
    conversation_id: str,
    runtime: StartedRuntime,
    after_id: Annotated[str | None, Query(alias="after")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = PAGE,
    order: Literal["asc", "desc"] = "desc",
) -> dict[str, Any]:
    """A page of the items of a conversation."""
    return conversations.list_items(
        runtime.responses,
        conversation_id,
        key_owner(request.scope),
        after_id=after_id,
        limit=limit,
        newest_first=order == "desc",
    )


@router.get(
    ITEM,
    operation_id="retrieve_conversation_item",
    response_model=None,
    responses=answers(schema.ConversationItem, errors=NO_ITEM),
)
async def get_conversation_item(
    request: Request, conversation_id: str, item_id: str, runtime: StartedRuntime
) -> Response:
    """An item of a conversation."""
    owner = key_owner(request.scope)
    item = conversations.retrieve_item(runtime.responses, conversation_id, owner, item_id)
    return Response(item, media_type="application/json")


@router.delete(
    ITEM,
    response_model=None,
    responses=answers(schema.ConversationObject, errors=NO_ITEM),
)
async def delete_conversation_item(
    request: Request, conversation_id: str, item_id: str, runtime: StartedRuntime
) -> dict[str, Any]:
    """Deletes an item of a conversation."""
    owner = key_owner(request.scope)
    return conversations.delete_item(runtime.responses, conversation_id, owner, item_id)
