"""The bodies of `/v1/conversations`, and the reference to one in a response."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from server.schema.base import Strict
from server.schema.bounds import MAX_INPUT_ITEMS
from server.schema.identifiers import Id, Metadata
from server.schema.response_items import InputItem


class ConversationReference(Strict):
    """The conversation that a response belongs to."""

    id: Id = Field(min_length=1)


def _as_reference(value: object) -> object:
    return {"id": value} if isinstance(value, str) else value


Conversation = Annotated[
    ConversationReference,
    BeforeValidator(_as_reference, json_schema_input_type=Id | ConversationReference),
]
"""A conversation's id, or an object with it."""


class CreateConversationRequest(Strict):
    """A conversation begins, empty or with items."""

    items: Annotated[list[InputItem], Field(max_length=MAX_INPUT_ITEMS, fail_fast=True)] | None = (
        None
    )
    metadata: Metadata | None = None


class UpdateConversationRequest(Strict):
    """The metadata of a conversation is replaced; null leaves none."""

    metadata: Metadata | None


class CreateItemsRequest(Strict):
    """Items are added at the end of a conversation."""

    items: Annotated[
        list[InputItem], Field(min_length=1, max_length=MAX_INPUT_ITEMS, fail_fast=True)
    ]
