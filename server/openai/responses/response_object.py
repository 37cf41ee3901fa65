"""The object of a response in its states, and what the store keeps of it."""

import json
from collections.abc import Sequence
from typing import Any

from server.errors import ApiError
from server.openai.logprobs import without_logprobs
from server.openai.responses.input_items import Item
from server.openai.responses.prepare import PreparedResponse
from server.openai.responses.store import ResponseStore, StoredResponse
from server.openai.responses.stored_conversations import append

ResponseObject = dict[str, Any]
"""A response as JSON has it."""


def response_object(
    response: PreparedResponse, status: str, output: Sequence[Item]
) -> ResponseObject:
    """The response with this status and output."""
    request = response.request
    return {
        "id": request.id,
        "object": "response",
        "created_at": request.created,
        "status": status,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": request.checked.model_name,
        "output": list(output),
        **response.fields,
        "usage": None,
    }


def failed_object(
    response: PreparedResponse, error: ApiError, output: Sequence[Item]
) -> ResponseObject:
    """The response with the error that has ended it."""
    body = response_object(response, "failed", output)
    # OpenAI's codes of a failure are few; `type` tells the causes apart.
    body["error"] = {
        "code": "server_error",
        "message": error.message,
        "type": error.code or error.type,
        "param": error.param,
    }
    return body


def stored_response(
    response: PreparedResponse, body: ResponseObject, events: bytes = b""
) -> StoredResponse:
    """What the store keeps of a response.

    Args:
        events: of its stream, encoded, if they are kept.
    """
    return StoredResponse(
        id=response.request.id,
        owner=response.owner,
        previous_id=response.previous_id,
        status=body["status"],
        body=json.dumps(body).encode(),
        items=json.dumps(response.items).encode(),
        output=json.dumps(without_logprobs(body["output"])).encode(),
        events=events,
    )


def keep(
    store: ResponseStore, response: PreparedResponse, body: ResponseObject, events: bytes = b""
) -> None:
    """Stores a response that has ended, if the client wants that, and adds to its conversation.

    Args:
        events: of its stream, if they are to be kept. Without room for them they are not.
    """
    conversation_id = response.conversation_id
    if conversation_id is not None and body["status"] in ("completed", "incomplete"):
        items = (*response.items, *without_logprobs(body["output"]))
        append(store, conversation_id, response.owner, items)
    if response.stored and not store.add(stored_response(response, body, events)) and events:
        store.add(stored_response(response, body))
