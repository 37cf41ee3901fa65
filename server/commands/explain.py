"""`specgate explain`: the method that a request would get from a running server, and why."""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from server.commands import BAD_SETTING, FAILED, print_error
from server.commands.admin_client import (
    AdminClient,
    AdminClientError,
    Parser,
    method_text,
    policy_lines,
    printable,
)

MAX_BODY_BYTES = 32 * 2**20


def explain(argv: Sequence[str], transport: httpx.BaseTransport | None = None) -> int:
    """Prints the decision for one body. Returns the exit status."""
    options = _parser().parse_args(argv)
    try:
        request = _request(options)
    except (OSError, ValueError) as error:
        print_error(f"BODY: {error}")
        return BAD_SETTING
    try:
        with AdminClient(options.url, options.admin_key, transport) as client:
            answer = client.post("/v1/explain", request)
    except AdminClientError as error:
        # In the API the body is one of two fields.
        print_error(re.sub(r"\b(?:chat|completion)\.(?=\w)", "", str(error)))
        return FAILED
    print(json.dumps(answer) if options.json else "\n".join(_lines(answer)))
    return 0


def _parser() -> Parser:
    parser = Parser(
        "specgate explain",
        "Says which method a request would get, and why. Nothing is generated.",
    )
    parser.add_argument(
        "body",
        metavar="BODY",
        help="the request's JSON body, a file that holds it, or - for standard input; with "
        "messages it is a chat, else a completion",
    )
    parser.add_argument(
        "--chat", action="store_true", help="BODY is the text of a user's message, not JSON"
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        type=_header,
        metavar="NAME=VALUE",
        help="a header that the request would have (repeatable)",
    )
    parser.add_argument("--api-key-name", metavar="NAME", help="the name of the request's API key")
    parser.add_argument("--json", action="store_true", help="print one JSON object on a line")
    parser.add_connection()
    return parser


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    return name, value


def _request(options: argparse.Namespace) -> dict[str, Any]:
    """The body of `/v1/explain`. Raises `OSError`, and `ValueError` for what is not JSON."""
    if options.chat:
        body: Any = {"messages": [{"role": "user", "content": options.body}]}
    else:
        body = json.loads(_text(options.body))
        if not isinstance(body, dict):
            raise ValueError("must be a JSON object")
    request: dict[str, Any] = {"chat" if "messages" in body else "completion": body}
    if options.header:
        request["headers"] = dict(options.header)
    if options.api_key_name is not None:
        request["api_key"] = options.api_key_name
    return request


def _text(body: str) -> str:
    if body.lstrip().startswith("{"):
        return body
    if body == "-":
        return sys.stdin.read(MAX_BODY_BYTES)
    path = Path(body)
    if not path.is_file():
        raise ValueError(f"{body!r} is neither a JSON object nor a file")
    return path.read_text("utf-8")


def _lines(answer: dict[str, Any]) -> list[str]:
    lines = [f"method     {method_text(answer)}", f"why        {printable(answer['why'])}"]
    request = answer["request"]
    traits = ", ".join(f"{k} {v}" for k, v in request.items() if v is not None)
    lines.append(f"request    {printable(traits)}")
    if answer["policy"] is not None:
        lines += policy_lines(answer["policy"])
    width = max((len(rule["rule"]) for rule in answer["rules"]), default=0)
    for i, rule in enumerate(answer["rules"]):
        matches = "matches" if rule["matches"] else "does not match"
        label = "rules" if not i else ""
        lines.append(f"{label:<10} {rule['rule']:<{width}}  {matches}: {printable(rule['why'])}")
    return lines
