"""Bodies of requests that ask for much with little: each field that constrains, or that is a list.

Each was tried against a server that did not bound it, or is near one that was. Sizes are what it
takes to pass a bound, not more, so that a test that sends them all stays quick.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Hostile:
    """A body.

    Attributes:
        fields: makes its fields, beside those of a small request.
        param: the field by which the gateway refuses it; `None` leaves it to the engine, whose
            answer may be a text or a refusal.
    """

    name: str
    fields: Callable[[], Fields]
    param: str | None = None
    path: str = CHAT

    def body(self) -> Fields:
        """The whole body. A text is long enough for a slow form to show."""
        small: dict[str, Fields] = {
            CHAT: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 300},
            COMPLETIONS: {"prompt": "a", "max_tokens": 16},
            RESPONSES: {"input": "a", "max_output_tokens": 16},
        }
        return {**small[self.path], **self.fields()}


def schema(of: Callable[[], Fields]) -> Callable[[], Fields]:
    """A chat's `response_format` with a JSON schema."""
    return lambda: {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": of()}}
    }


def outputs(**fields: Any) -> Callable[[], Fields]:
    """`structured_outputs` with these fields."""
    return lambda: {"structured_outputs": fields}


def pattern(regex: str) -> Callable[[], Fields]:
    return outputs(regex=regex)


def in_string(regex: str) -> Callable[[], Fields]:
    return schema(lambda: {"type": "string", "pattern": regex})


def doubling_refs(levels: int) -> Fields:
    """Definitions of which each refers twice to the one before: 2 ** levels paths."""
    defs: Fields = {"d0": {"type": "string"}}
    for i in range(1, levels + 1):
        ref = {"$ref": f"#/$defs/d{i - 1}"}
        defs[f"d{i}"] = {
            "type": "object",
            "properties": {"a": ref, "b": ref},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/d{levels}", "$defs": defs}


def doubling_all_of(levels: int) -> Fields:
    """Definitions of which each intersects two alternatives of the one before."""
    defs: Fields = {"d0": {"type": "object", "properties": {"a": {"type": "string"}}}}
    for i in range(1, levels + 1):
        ref = {"$ref": f"#/$defs/d{i - 1}"}
        branch = {"anyOf": [ref, {"properties": {f"p{i}": {"type": "integer"}}}]}
        defs[f"d{i}"] = {"allOf": [branch, branch]}
    return {"$ref": f"#/$defs/d{levels}", "$defs": defs}


def nested(levels: int) -> Fields:
    inner: Fields = {"type": "integer"}
    for _ in range(levels):
        inner = {"type": "array", "items": inner}
    return inner


def nested_items(levels: int, count: int) -> Fields:
    inner: Fields = {"type": "integer"}
    for _ in range(levels):
        inner = {"type": "array", "items": inner, "minItems": count, "maxItems": count}
    return inner


def tool(parameters: Any, name: str = "f") -> Fields:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def doubling_rules(count: int) -> str:
    rules = [f"r{i} ::= r{i - 1} r{i - 1}" for i in range(1, count + 1)]
    return "\n".join([f"root ::= r{count}", 'r0 ::= "a"', *rules])


def rules(count: int) -> str:
    chain = (f'r{i} ::= "{i}" r{i + 1} | "x"' for i in range(count))
    return "\n".join(["root ::= r0", *chain, f'r{count} ::= "y"'])


AMBIGUOUS = 'root ::= s\ns ::= s s | s s s | [a-z ] | ""'
FORMAT = "response_format.json_schema.schema"

LISTS = (
    Hostile("100,000 stop strings", lambda: {"stop": ["a"] * 100_000}, "stop"),
    Hostile("a stop string of 2 MB", lambda: {"stop": "a" * 2_000_000}, "stop"),
    Hostile("a list of lists to stop at", lambda: {"stop": [["a"]] * 1000}, "stop.0"),
    Hostile("500,000 stop tokens", lambda: {"stop_token_ids": [5] * 500_000}, "stop_token_ids"),
    Hostile("100,000 bad words", lambda: {"bad_words": ["word"] * 100_000}, "bad_words"),
    Hostile("a bad word of 1 MB", lambda: {"bad_words": ["w" * 1_000_000]}, "bad_words.0"),
    Hostile(
        "a bias for 100,000 tokens",
        lambda: {"logit_bias": {str(i): 1 for i in range(100_000)}},
        "logit_bias",
    ),
    Hostile("a bias for a key of 1 MB", lambda: {"logit_bias": {"1" * 1_000_000: 1}}, "logit_bias"),
    Hostile(
        "500,000 allowed tokens", lambda: {"allowed_token_ids": [5] * 500_000}, "allowed_token_ids"
    ),
    Hostile(
        "20,000 messages",
        lambda: {"messages": [{"role": "user", "content": "a"}] * 20_000},
        "messages",
    ),
    Hostile(
        "20,000 parts",
        lambda: {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 20_000}]
        },
        "messages",
    ),
    Hostile(
        "20,000 calls",
        lambda: {
            "messages": [
                {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * 20_000}
            ]
        },
        "messages",
    ),
    Hostile(
        "20,000 items",
        lambda: {"input": [{"role": "user", "content": "a"}] * 20_000},
        "input",
        RESPONSES,
    ),
    Hostile("100,000 documents", lambda: {"documents": [{"text": "a"}] * 100_000}, "documents"),
    Hostile(
        "2,048 prompts of 128 choices", lambda: {"prompt": ["a"] * 2048, "n": 128}, "n", COMPLETIONS
    ),
)
"""Long lists."""

TEXTS = (
    Hostile("a prompt of 8 MB", lambda: {"prompt": "word " * 1_600_000}, "prompt", COMPLETIONS),
    Hostile(
        "a message of 8 MB",
        lambda: {"messages": [{"role": "user", "content": "word " * 1_600_000}]},
        "messages",
    ),
    Hostile("an input of 8 MB", lambda: {"input": "word " * 1_600_000}, "input", RESPONSES),
    Hostile(
        "a prediction of 8 MB",
        lambda: {"prediction": {"type": "content", "content": "word " * 1_600_000}},
        "prediction.content",
    ),
    Hostile(
        "a prediction of 20,000 parts",
        lambda: {
            "prediction": {"type": "content", "content": [{"type": "text", "text": "a"}] * 20_000}
        },
        "prediction.content",
    ),
    Hostile(
        "500 prompts that are short",
        lambda: {"prompt": ["word " * 20] * 500, "max_tokens": 1},
        None,
        COMPLETIONS,
    ),
)
"""Long texts that would be tokenized."""

FORMS = (
    Hostile(
        "100,000 choices",
        lambda: {"structured_outputs": {"choice": [f"c{i}" for i in range(100_000)]}},
        "structured_outputs.choice",
    ),
    Hostile(
        "2,000 choices", lambda: {"structured_outputs": {"choice": [f"c{i}" for i in range(2000)]}}
    ),
    Hostile("a choice of 1 MB", outputs(choice=["a" * 1_000_000]), "structured_outputs.choice"),
    Hostile("100,000 guided choices", lambda: {"guided_choice": ["a"] * 100_000}, "guided_choice"),
    Hostile("a regex of 1 MB", pattern("a" * 1_000_000), "structured_outputs.regex"),
    Hostile("a guided regex of 1 MB", lambda: {"guided_regex": "a" * 1_000_000}, "guided_regex"),
    Hostile("a regex that is wrong after 10 kB", pattern("a" * 10_000 + "(")),
    Hostile("9,000 parentheses", pattern("(" * 9000 + "a" + ")" * 9000)),
    Hostile("a repetition", pattern("a{1,100000}")),
    Hostile("nested repetitions", pattern("((a{1,500}){1,500}){1,500}")),
    Hostile("a wide repetition of alternatives", pattern("(a|b|ab){1,5000}")),
    Hostile("a regex of 2^20 states", pattern("(a|b)*a(a|b){20}")),
    Hostile("a regex that every text keeps going", pattern(r"(.|\n)*[xyz](.|\n){60}[xyz](.|\n)*")),
    Hostile("words of Unicode", pattern(r"(\w+\s){50}\W{50}\p{L}{1,1000}")),
    Hostile("intersections by look-ahead", pattern(r"(?=.*a)(?=.*b)(?=.*c).*")),
    Hostile(
        "a grammar of 20,000 rules",
        lambda: {"structured_outputs": {"grammar": rules(20_000)}},
        "structured_outputs.grammar",
    ),
    Hostile("llama.cpp's grammar of 20,000 rules", lambda: {"grammar": rules(20_000)}, "grammar"),
    Hostile("a grammar of 3,000 rules", outputs(grammar=rules(3000))),
    Hostile("30 rules that double", outputs(grammar=doubling_rules(30))),
    Hostile("an ambiguous grammar", outputs(grammar=AMBIGUOUS)),
    Hostile(
        "left recursion in Lark",
        outputs(grammar='start: start start | start start start | "a" | ""'),
    ),
    Hostile(
        "a repetition in Lark", outputs(grammar='start: x{1,1000}\nx: y{1,1000}\ny: "a" | "b"')
    ),
    Hostile(
        "structural tags", lambda: {"structural_tag": {"tags": ["a"] * 1000}}, "structural_tag"
    ),
)
"""Regular expressions, choices and grammars."""

SCHEMAS = (
    Hostile("minItems of 1e8", schema(lambda: {"type": "array", "minItems": 100_000_000})),
    Hostile("maxItems of 1e8", schema(lambda: {"type": "array", "maxItems": 100_000_000})),
    Hostile(
        "maxItems of 2,000",
        schema(lambda: {"type": "array", "maxItems": 2000, "items": {"type": "integer"}}),
    ),
    Hostile("items below items", schema(lambda: nested_items(5, 1_000_000_000))),
    Hostile("items below items, under the bound", schema(lambda: nested_items(20, 50))),
    Hostile(
        "items behind a reference",
        schema(lambda: {"$ref": "#/x/y", "x": {"y": {"type": "array", "maxItems": 1e8}}}),
        "response_format.json_schema.schema",
    ),
    Hostile("minLength of 1e9", schema(lambda: {"type": "string", "minLength": 1_000_000_000})),
    Hostile("maxLength of 1e9", schema(lambda: {"type": "string", "maxLength": 1_000_000_000})),
    Hostile("minLength of 5,000", schema(lambda: {"type": "string", "minLength": 5000})),
    Hostile(
        "minProperties of 1e8", schema(lambda: {"type": "object", "minProperties": 100_000_000})
    ),
    Hostile(
        "maxProperties of 1e8", schema(lambda: {"type": "object", "maxProperties": 100_000_000})
    ),
    Hostile("a number of 300 digits", schema(lambda: {"type": "integer", "maximum": 10**300})),
    Hostile(
        "a multiple of a small part",
        schema(lambda: {"type": "number", "multipleOf": 1e-9, "maximum": 1e9}),
    ),
    Hostile("a pattern that repeats", in_string("^a{1,100000}$")),
    Hostile("a pattern of 2^20 states", in_string("^(a|b)*a(a|b){20}$")),
    Hostile("a pattern of nested repetitions", in_string("^(((a|b){1,100}c){1,100}d){1,100}$")),
    Hostile("references that double, 24 times", schema(lambda: doubling_refs(24))),
    Hostile("references that double, 20 times", schema(lambda: doubling_refs(20))),
    Hostile("intersections that double", schema(lambda: doubling_all_of(16))),
    Hostile("200 levels", schema(lambda: nested(200)), FORMAT),
    Hostile(
        "50,001 properties",
        schema(lambda: {"properties": {f"p{i}": {} for i in range(50_001)}}),
        FORMAT,
    ),
    Hostile(
        "2,000 properties",
        schema(
            lambda: {
                "type": "object",
                "properties": {f"p{i}": {"type": "string"} for i in range(2000)},
            }
        ),
    ),
    Hostile("an enum of 300,000", schema(lambda: {"enum": list(range(300_000))}), FORMAT),
    Hostile("an enum of 20,000", schema(lambda: {"enum": [f"v{i}" for i in range(20_000)]})),
    Hostile("a description of 1 MB", schema(lambda: {"description": "a" * 1_000_000}), FORMAT),
    Hostile(
        "a product of alternatives",
        schema(
            lambda: {
                "allOf": [
                    {"anyOf": [{"properties": {f"a{i}{j}": {"type": "string"}}} for j in range(8)]}
                    for i in range(8)
                ]
            }
        ),
    ),
    Hostile(
        "a schema that no text fits",
        schema(
            lambda: {
                "type": "object",
                "properties": {"a": {"$ref": "#"}},
                "required": ["a"],
                "additionalProperties": False,
            }
        ),
    ),
    Hostile("a reference to itself", schema(lambda: {"$ref": "#"}), FORMAT),
    Hostile("a long pointer", schema(lambda: {"$ref": "#" + "/a" * 200_000, "a": {}})),
    Hostile(
        "20,000 references",
        schema(
            lambda: {
                "properties": {f"p{i}": {"$ref": f"#/properties/p{i + 1}"} for i in range(20_000)}
            }
        ),
    ),
    Hostile("100,000 brackets as text", outputs(json="[" * 100_000), "structured_outputs.json"),
    Hostile(
        "2 MB of text", lambda: {"json_schema": '{"a":"' + "a" * 2_000_000 + '"}'}, "json_schema"
    ),
    Hostile(
        "an enum of 300,000 for Ollama",
        lambda: {"format": {"enum": list(range(300_000))}},
        "format",
    ),
    Hostile(
        "1,000 tools",
        lambda: {"tools": [tool({}, f"f{i}") for i in range(1000)], "tool_choice": "required"},
        "tools",
    ),
    Hostile(
        "128 tools of 10 kB",
        lambda: {
            "tools": [tool({"description": "a" * 10_000}, f"f{i}") for i in range(128)],
            "tool_choice": "required",
        },
        "tools.49.function.parameters",
    ),
    Hostile(
        "a tool of references that double",
        lambda: {
            "tools": [
                tool(
                    {
                        "type": "object",
                        "properties": {"a": {"$ref": "#/$defs/d24"}},
                        "$defs": doubling_refs(24)["$defs"],
                    }
                )
            ],
            "tool_choice": "required",
        },
    ),
    Hostile(
        "an enum of 300,000 in a response",
        lambda: {
            "text": {
                "format": {
                    "type": "json_schema",
                    "name": "a",
                    "schema": {"enum": list(range(300_000))},
                }
            }
        },
        "text.format.schema",
        RESPONSES,
    ),
)
"""JSON schemas."""

ALL = (*LISTS, *TEXTS, *FORMS, *SCHEMAS)
"""The table."""
