"""Random constraints and lists: nested, repeated, combined, some of them wrong."""

import random
from typing import Any

from tests.server.hostile.body import CHAT, COMPLETIONS

_COUNTS = (0, 1, 2, 3, 7, 50, 999, 5000, 100_000, 10**9)
_NAMES = ("a", "b", "c", "d")
_ATOMS = (
    "a",
    "[a-z]",
    ".",
    r"\d",
    r"\w",
    r"\n",
    "é",
    r"\p{L}",
    "(?i:b)",
    "[^x]",
    "^",
    "$",
    "(?=a)",
)


def random_body(seed: int) -> tuple[str, dict[str, Any]]:
    """The path and body of a small request with one random constraint; equal for equal seeds."""
    rng = random.Random(seed)
    kind = rng.choice((_schema_format, _regex, _grammar, _choice, _lists, _tools))
    fields = kind(rng)
    path = CHAT if "tools" in fields else rng.choice((CHAT, COMPLETIONS))
    prompt: dict[str, Any] = {"prompt": "a"}
    if path == CHAT:
        prompt = {"messages": [{"role": "user", "content": "a"}]}
    return path, {**prompt, "max_tokens": rng.randint(1, 40), "n": rng.choice((1, 1, 3)), **fields}


def _count(rng: random.Random) -> int:
    return rng.choice(_COUNTS)


def _schema(rng: random.Random, depth: int = 0) -> Any:
    if depth > 4 or rng.random() < 0.1:
        return rng.choice(({}, True, {"type": "null"}, {"$ref": "#/$defs/a"}, {"const": "x"}))
    kind = rng.choice(("object", "array", "string", "integer", "number", "anyOf", "allOf", "enum"))
    inner = [_schema(rng, depth + 1) for _ in range(rng.randint(1, 4))]
    if kind == "object":
        made: dict[str, Any] = {
            "type": kind,
            "properties": dict(zip(_NAMES, inner, strict=False)),
            "additionalProperties": rng.choice((False, True, _schema(rng, depth + 1))),
        }
        made["required"] = rng.sample(_NAMES, rng.randint(0, 2))
        if rng.random() < 0.2:
            made[rng.choice(("minProperties", "maxProperties"))] = _count(rng)
        return made
    if kind == "array":
        bounds = {rng.choice(("minItems", "maxItems")): _count(rng)}
        return {"type": kind, "items": inner[0], **(bounds if rng.random() < 0.6 else {})}
    if kind == "string":
        bound = rng.choice(("minLength", "maxLength", "pattern", "format"))
        value: Any = _count(rng)
        if bound == "pattern":
            value = _pattern(rng)
        elif bound == "format":
            value = rng.choice(("date", "email", "password", "uri"))
        return {"type": kind, bound: value}
    if kind in ("integer", "number"):
        bound = rng.choice(("minimum", "maximum", "multipleOf", "exclusiveMaximum"))
        return {"type": kind, bound: rng.choice((*_COUNTS, -5, 0.001, 1e-9))}
    if kind == "enum":
        return {"enum": [rng.choice((i, str(i), None, [i])) for i in range(rng.randint(1, 300))]}
    return {kind: inner}


def _schema_format(rng: random.Random) -> dict[str, Any]:
    schema = {"$defs": {"a": _schema(rng, 2)}, **_object(_schema(rng))}
    wrapped = {"name": "a", "schema": schema, "strict": rng.random() < 0.2}
    return {"response_format": {"type": "json_schema", "json_schema": wrapped}}


def _object(schema: Any) -> dict[str, Any]:
    return schema if isinstance(schema, dict) else {}


def _pattern(rng: random.Random, depth: int = 0) -> str:
    if depth > 4 or rng.random() < 0.2:
        return rng.choice(_ATOMS)
    parts = "".join(_pattern(rng, depth + 1) for _ in range(rng.randint(1, 4)))
    form = rng.choice(
        ("{0}", "({0})*", "({0})+", "({0})?", "({0}|b)", "({0}){{{1}}}", "({0}){{1,{1}}}")
    )
    return form.format(parts, _count(rng))


def _regex(rng: random.Random) -> dict[str, Any]:
    return {"structured_outputs": {"regex": _pattern(rng)}}


def _grammar(rng: random.Random) -> dict[str, Any]:
    names = [f"r{i}" for i in range(rng.randint(1, 12))]

    def alternative() -> str:
        tokens = ['"a"', '"b"', "[a-z]", '""', *names]
        return " ".join(
            rng.choice(tokens) + rng.choice(("", "", "*", "?", "+"))
            for _ in range(rng.randint(1, 4))
        )

    rules = [f"{name} ::= {alternative()} | {alternative()}" for name in names]
    return {"structured_outputs": {"grammar": "\n".join(["root ::= r0", *rules])}}


def _choice(rng: random.Random) -> dict[str, Any]:
    size = rng.choice((1, 5, 300, 1900, 2500))
    return {
        "structured_outputs": {"choice": [rng.choice("abc") * (i % 40 + 1) for i in range(size)]}
    }


def _lists(rng: random.Random) -> dict[str, Any]:
    size = rng.choice((0, 1, 100, 128, 129, 1024, 20_000))
    return rng.choice(
        (
            {"stop": ["z" * rng.randint(0, 50)] * size},
            {"stop_token_ids": [rng.randint(-1, 5000)] * size},
            {"bad_words": [rng.choice(("a", " ", "word", "\n"))] * size},
            {"allowed_token_ids": [rng.randint(0, 4000)] * size},
            {"logit_bias": {str(i): rng.choice((-100, 1.5, 100)) for i in range(min(size, 3000))}},
            {"prediction": {"type": "content", "content": "a " * size}},
        )
    )


def _tools(rng: random.Random) -> dict[str, Any]:
    tools = [
        {"type": "function", "function": {"name": f"f{i}", "parameters": _object(_schema(rng, 2))}}
        for i in range(rng.randint(1, 6))
    ]
    return {"tools": tools, "tool_choice": "required"}
