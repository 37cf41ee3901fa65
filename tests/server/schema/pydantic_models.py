"""Ordinary classes of clients, whose schemas a server has to accept."""

from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Literal, Optional
from uuid import UUID

from pydantic import BaseModel, Field, SecretStr, WithJsonSchema


class Colour(Enum):
    """An enumeration."""

    RED = "red"
    BLUE = "blue"


class Tags(BaseModel):
    """A set."""

    tags: set[str]


class Login(BaseModel):
    """A secret."""

    user: str
    password: SecretStr


class Document(BaseModel):
    """A path, and bytes."""

    path: Path
    content: bytes


class Event(BaseModel):
    """Times."""

    at: datetime
    day: date
    lasts: timedelta


class Identified(BaseModel):
    """Formats that are enforced."""

    id: UUID
    address: IPv4Address


class Price(BaseModel):
    """A number."""

    amount: Decimal


class OlderPrice(BaseModel):
    """What older releases of pydantic write for a decimal: a pattern that looks ahead."""

    amount: Annotated[
        Decimal,
        WithJsonSchema({"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}),
    ]


class Painted(BaseModel):
    """Choices."""

    colour: Colour
    size: Literal["s", "m"]
    note: Optional[str] = None  # noqa: UP045
    weight: int | None = Field(None, ge=0, le=9)


class Order(BaseModel):
    """Others within."""

    items: list[Painted] = Field(min_length=1, max_length=2)
    tags: frozenset[Colour] = Field(max_length=2)


class Tree(BaseModel):
    """Itself within."""

    name: str = Field(max_length=5)
    children: list["Tree"] = Field(max_length=1)


MODELS: dict[type[BaseModel], tuple[str, ...]] = {
    Tags: ("uniqueItems",),
    Login: ("format:password",),
    Document: ("format:path", "format:binary"),
    Event: (),
    Identified: (),
    Price: (),
    OlderPrice: ("pattern",),
    Painted: (),
    Order: ("uniqueItems",),
    Tree: (),
}
"""Each with the keywords of its schema that are not enforced."""
