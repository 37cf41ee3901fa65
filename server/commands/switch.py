"""`specgate switch`: changes the active method of a running server."""

import argparse
import math
from collections.abc import Sequence
from typing import Any

import httpx

from server.commands import FAILED, print_error
from server.commands.admin_client import AdminClient, AdminClientError, Parser, method_text
from server.commands.fleet_switch import FLEET_ONLY, add_fleet_arguments, switch_all
from server.control.types import DRAIN_TIMEOUT_S, OnTimeout, SwitchMode

ARGUMENTS = {
    "speculative_model": "METHOD",
    "num_speculative_tokens": "--k",
    "mode": "--mode",
    "timeout_s": "--timeout",
    "on_timeout": "--on-timeout",
    "reason": "--reason",
}
"""The API's fields, and the arguments that set them."""


def switch(argv: Sequence[str], transport: httpx.BaseTransport | None = None) -> int:
    """Switches and prints the previous and the new method. Returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    urls = parser.fleet_urls(options)
    if options.all:
        return switch_all(options, urls)
    for name in FLEET_ONLY:
        if getattr(options, name) not in (None, False):
            parser.error(f"--{name.replace('_', '-')}: needs --all")
    wait_s = (options.timeout or DRAIN_TIMEOUT_S) if options.mode == SwitchMode.DRAIN else 0.0
    try:
        with AdminClient(urls[0], options.admin_key, transport, ARGUMENTS) as client:
            answer = client.post("/v1/switch_spec_method", _body(options), wait_s)
            print(_sentence(answer))
    except AdminClientError as error:
        print_error(str(error))
        return FAILED
    return 0


def _parser() -> Parser:
    parser = Parser("specgate switch", "Makes METHOD draft for requests that do not choose.")
    parser.add_argument(
        "method",
        metavar="METHOD",
        help="a proposer, [method], a policy (auto), primary, backup, or none",
    )
    parser.add_argument(
        "--k",
        type=_count,
        help="most tokens to draft in a step (default: the proposer's; under a policy the largest)",
    )
    parser.add_argument(
        "--mode",
        choices=[mode.value for mode in SwitchMode],
        default=SwitchMode.IMMEDIATE,
        help="immediate: running requests change too; new_requests: they keep theirs; "
        "drain: they finish first, and new ones are held (default: immediate)",
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        metavar="S",
        help=f"seconds that a drain may wait (default: {DRAIN_TIMEOUT_S:g})",
    )
    parser.add_argument(
        "--on-timeout",
        choices=[choice.value for choice in OnTimeout],
        help="requests that have not ended then: fail the drain, move to the new method, or abort "
        "with an error (default: fail)",
    )
    parser.add_argument("--reason", metavar="TEXT", help="kept in the server's audit")
    parser.add_connection(several=True)
    add_fleet_arguments(parser)
    return parser


def _body(options: argparse.Namespace) -> dict[str, Any]:
    """The request's body; options that are not given are left out."""
    body = {
        "speculative_model": options.method,
        "mode": options.mode,
        "num_speculative_tokens": options.k,
        "timeout_s": options.timeout,
        "on_timeout": options.on_timeout,
        "reason": options.reason,
    }
    return {name: value for name, value in body.items() if value is not None}


def _sentence(answer: dict[str, Any]) -> str:
    aborted = f"{answer['aborted']} aborted, " if answer["aborted"] else ""
    return (
        f"{method_text(answer['previous'])} -> {method_text(answer['active'])}: {answer['mode']}, "
        f"generation {answer['generation']}, {answer['in_flight']} in flight, "
        f"{aborted}{answer['waited_ms']:.1f} ms"
    )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of tokens, 0 or more, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be seconds, above 0, got {text!r}")
    return seconds
