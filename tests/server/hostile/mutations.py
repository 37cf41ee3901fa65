"""Bodies that are nearly valid, for every operation that takes one: made from a number.

A body is one that succeeds, with some fields that the OpenAPI document has for its operation, and
then with faults: values of another type, huge numbers, lone surrogates, deep nesting, fields that
are missing, long or twice there. A few are not JSON at all.
"""

import copy
import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

from tests.server.contract.bodies import SUCCESS
from tests.server.contract.contract import contract

Body = tuple[str, str, bytes]
"""Method, path, content."""

Container = dict[str, Any] | list[Any]

CONTENT_BYTES = 300_000
"""About the size up to which a body grows."""


def _deep(rng: random.Random) -> Any:
    """Lists and objects within each other."""
    value: Any = rng.choice((1, "a", None, []))
    for _ in range(rng.choice((3, 30, 300))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 128, 129, 1000, 2**31, 2**63, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1.5, -1.5, 1e-9, 1e308, -1e308, float("nan"), float("inf"), -float("inf")),
    *("", " ", "a", "0", "1e3", "true", "null", "\ud800", "a\udfffb", "\x00", "\n", "é" * 50, "😀"),
    *("a" * 10_000, "../../etc/passwd", "{{7*7}}", "%s%n", "auto", "none", "draft", "ngram"),
    *("json_object", "required", "assistant", "tool", "developer", "new_requests", "drain"),
    *([], {}, [None], [[]], [{}], {"": ""}, {"a": None}, ["a", 1, None], {"type": "text"}),
    *({"type": "function"}, {"type": "json_schema"}, {"\ud800": 1}, [0, 1, 2], [-1], [2**40]),
)
"""What a value is replaced by."""


def mutated(seed: int) -> Body:
    """A request; equal for equal seeds."""
    rng = random.Random(seed)
    name = rng.choice(_names())
    method, path, schema = _operations()[name]
    body = json.loads(json.dumps(rng.choice(SUCCESS[name])))
    fields = sorted(schema.get("properties", ()))
    for field in rng.sample(fields, min(len(fields), rng.choice((0, 0, 0, 0, 1, 1, 4)))):
        body[field] = _value(schema["properties"][field], rng)
    for _ in range(rng.choice((0, 0, 0, 1, 1, 1, 1, 2, 4))):
        body = rng.choice(_FAULTS)(body, rng)
    content = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")
    if rng.random() < 0.07:
        content = rng.choice(_TEXT_FAULTS)(content, rng)
    return method, path, content


@cache
def _operations() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Operation -> method, path and the schema of its body."""
    return {
        operation["operationId"]: (
            method,
            path,
            _resolved(operation["requestBody"]["content"]["application/json"]["schema"]),
        )
        for method, path, operation in contract().operations()
        if "application/json" in operation.get("requestBody", {"content": ()})["content"]
    }


@cache
def _names() -> tuple[str, ...]:
    """The operations; those that generate have the most fields, and come more often."""
    generating = ("create_chat_completion", "create_completion", "create_response")
    return (*_operations(), *generating * 4)


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        found: Any = contract().document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def _value(schema: Any, rng: random.Random, depth: int = 0) -> Any:
    """A value that the schema allows, as far as its types go."""
    schema = _resolved(schema) if isinstance(schema, dict) else {}
    if depth > 6:
        return None
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return _value(rng.choice(schema[key]), rng, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    low, high = schema.get("minimum", -3), schema.get("maximum", 40)
    kinds: dict[Any, Callable[[], Any]] = {
        "null": lambda: None,
        "boolean": lambda: rng.random() < 0.5,
        "integer": lambda: rng.randint(int(low), max(int(low), min(int(high), 40))),
        "number": lambda: rng.uniform(low, high),
        "string": lambda: rng.choice(("a", "def f(x):", "ngram", "é", "", "user", "{}")),
        "array": lambda: [
            _value(schema.get("items", {}), rng, depth + 1) for _ in range(rng.choice((0, 1, 1, 3)))
        ],
        "object": lambda: {
            name: _value(inner, rng, depth + 1)
            for name, inner in schema.get("properties", {}).items()
            if name in schema.get("required", ()) or rng.random() < 0.3
        },
    }
    return kinds.get(schema.get("type"), lambda: copy.deepcopy(rng.choice(VALUES)))()


def _places(body: Any) -> list[tuple[Container, Any]]:
    """Every (object or list, key or index) below the body."""
    found: list[tuple[Container, Any]] = []
    waiting = [body]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list):
            keys = list(one) if isinstance(one, dict) else list(range(len(one)))
            found += [(one, key) for key in keys]
            waiting += [one[key] for key in keys]
    return found


def _at(change: Callable[[Any, Any, random.Random], None]) -> Callable[[Any, random.Random], Any]:
    """A fault at a random place of the body."""

    def apply(body: Any, rng: random.Random) -> Any:
        if places := _places(body):
            change(*rng.choice(places), rng)
        return body

    return apply


def _replace(holder: Any, key: Any, rng: random.Random) -> None:
    # A copy: the next fault may be in it, and the table must stay as it is.
    holder[key] = copy.deepcopy(rng.choice(VALUES))


def _nest(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = _deep(rng)


def _remove(holder: Any, key: Any, rng: random.Random) -> None:
    del holder[key]


def _wrap(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = rng.choice(([holder[key]], {"a": holder[key]}, str(holder[key])))


def _repeat(holder: Any, key: Any, rng: random.Random) -> None:
    size = len(json.dumps(holder[key])) + 1
    count = min(rng.choice((2, 20, 2000)), CONTENT_BYTES // size)
    value = holder[key]
    holder[key] = value * count if isinstance(value, str | list) else [value] * count


def _rename(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, dict):
        holder[rng.choice((key.upper(), f"{key} ", "", "__proto__", "\ud800"))] = holder.pop(key)


def _exchange(holder: Any, key: Any, rng: random.Random) -> None:
    other = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


def _other_kind(body: Any, rng: random.Random) -> Any:
    return rng.choice(([body], json.dumps(body), None, 1, [], {}))


_FAULTS: tuple[Callable[[Any, random.Random], Any], ...] = (
    *[_at(_replace)] * 6,
    *map(_at, (_nest, _remove, _remove, _wrap, _repeat, _rename, _exchange)),
    _other_kind,
)


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _twice(content: bytes, rng: random.Random) -> bytes:
    """An object whose fields are all there twice."""
    return content[:-1] + b"," + content[1:] if content[:1] == b"{" else content * 2


_TEXT_FAULTS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _cut,
    _twice,
    lambda content, rng: content + rng.choice((b"}", b" x", b"\x00", b"\n{}")),
    lambda content, rng: b"\xef\xbb\xbf" + content,
    lambda content, rng: content.replace(b"a", b"\xff", 1),
    lambda content, rng: content.decode(errors="replace").encode("utf-16"),
    lambda content, rng: b"[" * 100_000,
    lambda content, rng: b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    lambda content, rng: b'{"max_tokens": ' + b"9" * 100_000 + b"}",
    lambda content, rng: b"",
)
