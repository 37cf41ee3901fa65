"""The measured sides: an address, and what is added to the bodies of its requests."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import responses
from typing import Any

from benchmarks.http_stream import Endpoint, Reply

FIELDS = ("url", "model", "body", "body_by_label", "key_variable")
FORMS = "NAME=URL, NAME={JSON}, or the NAME of a proposer or policy of the server at --url"
ASK_LIMIT_S = 20.0
"""For the model and the version of a server, which it knows without work."""
MODELS, CHAT = "/v1/models", "/v1/chat/completions"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@/ -]{0,63}")
RESERVED = frozenset({"messages", "prompt", "model", "stream", "stream_options"})
"""Fields of the body that the harness sets itself."""


@dataclass(frozen=True, slots=True)
class Side:
    """One measured side.

    Attributes:
        name: in the results.
        url: address of the server, with or without `/v1`.
        model: the model to request; `None` is the first that the server lists.
        body: fields added to the body of every request.
        body_by_label: label -> fields added to the bodies of prompts with this label.
        key_variable: environment variable that holds the API key; `None` sends none.
    """

    name: str
    url: str
    model: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    body_by_label: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    key_variable: str | None = None

    @property
    def address(self) -> str:
        """The address without `/v1`."""
        return self.url.rstrip("/").removesuffix("/v1")

    def endpoint(self) -> Endpoint:
        """A client. Raises `ValueError` for a bad address or a missing key."""
        key = None
        if self.key_variable is not None:
            key = os.environ.get(self.key_variable)
            if not key:
                raise ValueError(f"{self.name}: the variable {self.key_variable} is not set")
        try:
            return Endpoint(self.address, key)
        except ValueError as error:
            raise ValueError(f"{self.name}: url: {error}") from None

    def fields_for(self, label: str) -> dict[str, Any]:
        """What is added to the body of a request with this label."""
        return {**self.body, **self.body_by_label.get(label, {})}


def parse_side(text: str, url: str, key_variable: str | None) -> Side:
    """A side as given on the command line, in one of the `FORMS`.

    Args:
        text: the argument.
        url, key_variable: for a side that has none of its own.

    Raises:
        ValueError: what is wrong, with the field.
    """
    name, separator, value = text.partition("=")
    name = name.strip()
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{text!r}: a name has letters, digits and ._+-@/, and begins with a letter or digit; "
            f"the forms are {FORMS}"
        )
    if not separator:
        return Side(name, url, None, {"spec_decode": {"proposer": name}}, {}, key_variable)
    if not value.lstrip().startswith("{"):
        if not value.startswith(("http://", "https://")):
            raise ValueError(f"{text!r} has no address and no JSON object; the forms are {FORMS}")
        return Side(name, value, key_variable=key_variable)
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: is not valid JSON ({error})") from None
    return _from_fields(name, fields, url, key_variable)


def _from_fields(name: str, values: dict[str, Any], url: str, key_variable: str | None) -> Side:
    for key, value in values.items():
        if key not in FIELDS:
            raise ValueError(f"{name}: unknown field {key!r}; the fields are {', '.join(FIELDS)}")
        field_type: type = dict if key.startswith("body") else str
        if not isinstance(value, field_type) or value == "":
            what = "an object" if field_type is dict else "a text"
            raise ValueError(f"{name}: {key} must be {what}, got {json.dumps(value)[:100]}")
    bodies = {"body": values.get("body", {})}
    for label, body in values.get("body_by_label", {}).items():
        if not isinstance(body, dict):
            raise ValueError(f"{name}: body_by_label.{label} must be an object")
        bodies[f"body_by_label.{label}"] = body
    for place, body in bodies.items():
        if reserved := sorted(RESERVED & set(body)):
            raise ValueError(f"{name}: {place}.{reserved[0]} is set by the harness; leave it out")
    return Side(
        name,
        values.get("url", url),
        values.get("model"),
        values.get("body", {}),
        values.get("body_by_label", {}),
        values.get("key_variable", key_variable),
    )


@dataclass(frozen=True, slots=True)
class Target:
    """A side whose server has answered.

    Attributes:
        model: the requested model.
        extras: fields beyond OpenAI's that the server accepts, added to every body.
        refused: those that it refuses.
        version: what its `/version` says, if it has one.
    """

    side: Side
    endpoint: Endpoint
    model: str
    extras: Mapping[str, Any]
    refused: tuple[str, ...]
    version: Any = None


async def prepare(side: Side, time_limit_s: float, *, ignore_eos: bool) -> Target:
    """Asks the server for its model, and tries which extra fields it accepts.

    Args:
        side: the side.
        time_limit_s: of each completion that is tried.
        ignore_eos: whether answers should continue after their end-of-text token.

    Raises:
        RuntimeError: the server cannot be used; the message has its answer.
    """
    endpoint = side.endpoint()
    model = side.model or await _first_model(side, endpoint)
    version = await endpoint.get("/version", ASK_LIMIT_S)
    extras = _extras(ignore_eos=ignore_eos)
    for tried in extras:
        reply = await endpoint.post(CHAT, _trial(side, model, tried), time_limit_s)
        if reply.status == 200 and reply.problem is None and reply.events:
            refused = sorted(_names(extras[0]) - _names(tried))
            return Target(side, endpoint, model, tried, tuple(refused), _json(version))
        if reply.status not in (400, 422):
            break
    why = describe(reply)
    if reply.status == 200 and reply.problem is None:
        why = f"the answer is not a stream of events ({why})"
    raise RuntimeError(f"--side {side.name}: {side.address}{CHAT}: {why}")


def _extras(*, ignore_eos: bool) -> list[dict[str, Any]]:
    """The fields beyond OpenAI's, from all that are wanted to none."""
    final: dict[str, Any] = {"stream_options": {"include_usage": True}}
    extras = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    if not ignore_eos:
        return [extras, final, {}]
    # An end-of-text token then has text, and so a chunk, like any other token.
    eos = {"ignore_eos": True, "skip_special_tokens": False}
    return [extras | eos, final | eos, extras, final, {}]


def _names(fields: Mapping[str, Any]) -> set[str]:
    return {*fields, *fields.get("stream_options", {})}


def _trial(side: Side, model: str, extras: Mapping[str, Any]) -> bytes:
    """The body of a short chat with these fields."""
    labels = iter(side.body_by_label)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Write a function `warm_up`."}],
        "max_tokens": 2,
        "stream": True,
        **extras,
        **side.fields_for(next(labels, "")),
    }
    return json.dumps(body).encode()


async def _first_model(side: Side, endpoint: Endpoint) -> str:
    reply = await endpoint.get(MODELS, ASK_LIMIT_S)
    listed = _json(reply)
    try:
        return str(listed["data"][0]["id"])
    except (TypeError, KeyError, IndexError):
        why = f"--side {side.name}: {side.address}{MODELS}: {describe(reply)}"
        if reply.problem is None:
            why += '; if the server lists no models, name one: NAME={"url": URL, "model": MODEL}'
        raise RuntimeError(why) from None


def describe(reply: Reply) -> str:
    """Why a reply does not count as an answer, on one line."""
    if reply.problem is not None:
        return f"{reply.problem}: {reply.detail}"
    body = _json(reply)
    error = body.get("error", body) if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    text = " ".join(str(message or reply.body[:500].decode(errors="replace")).split())
    return f"{reply.status}: {text[:500] or responses.get(reply.status or 0, 'no text')}"


def _json(reply: Reply) -> Any:
    """The body; `None` if it is not JSON."""
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError):
        return None
