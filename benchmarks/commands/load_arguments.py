"""The arguments of `specgate bench load`."""

import argparse
import os

from benchmarks.commands.arguments import MAX_SEED, add_count, add_out, count, number
from server.commands.admin_client import DEFAULT_URL, URL_VARIABLE, Parser

CONCURRENCY, REQUESTS, RAMP_SECONDS = 8, 64, 60.0
SLO_NAMES = ("ttft", "tpot", "e2e")
MAX_CONCURRENT = 4096


def make_parser() -> Parser:
    """The arguments."""
    parser = Parser(
        "specgate bench load",
        "Measures one or several sides over HTTP, in turn, under the same requests: latencies, "
        "throughput, goodput, and ratios with intervals. Any OpenAI-compatible server can be a "
        "side.",
    )
    _add_sides(parser)
    _add_requests(parser)
    _add_arrivals(parser)
    _add_passes(parser)
    parser.add_argument(
        "--slo",
        action="append",
        type=_slo,
        default=[],
        metavar="NAME=MS",
        help="objective for goodput: ttft, tpot or e2e in milliseconds (repeatable)",
    )
    add_out(parser, "for load.json, load.jsonl, load.md and load.html")
    parser.add_argument(
        "--no-html", action="store_true", help="no report with plots, which needs matplotlib"
    )
    return parser


def _add_sides(parser: Parser) -> None:
    parser.add_argument(
        "--side",
        action="append",
        metavar="SIDE",
        help="NAME=URL, or NAME={JSON} with url, model, body, body_by_label and key_variable, or "
        "the NAME of a proposer or policy of the server at --url (repeatable; the first is the "
        "base; default: the server at --url)",
    )
    parser.add_argument(
        "--url",
        default=os.environ.get(URL_VARIABLE) or DEFAULT_URL,
        help=f"server of sides without an address (variable {URL_VARIABLE}; "
        f"default: {DEFAULT_URL})",
    )
    parser.add_argument(
        "--key-variable",
        metavar="VARIABLE",
        help="environment variable with the API key of sides that name none",
    )


def _add_requests(parser: Parser) -> None:
    parser.add_argument(
        "--workload",
        action="append",
        metavar="NAME",
        help="quote, free, code-edit, random, rag, mixed, shift, shift:KIND:KIND, or a file of "
        "JSON lines (repeatable; default: rag)",
    )
    parser.add_argument(
        "--split", choices=("all", "tune", "report"), default="all", help="half of the prompts"
    )
    parser.add_argument(
        "--temperature",
        action="append",
        type=number(0.0, 2.0),
        metavar="T",
        help="(repeatable; default: the workload's)",
    )
    add_count(parser, "--max-tokens", 128, "limit of an answer")
    parser.add_argument(
        "--ignore-eos", action="store_true", help="every answer has --max-tokens tokens"
    )


def _add_arrivals(parser: Parser) -> None:
    parser.add_argument(
        "--concurrency",
        action="append",
        type=number(1, MAX_CONCURRENT, int),
        metavar="N",
        help=f"closed loop with N requests in flight (repeatable; default: {CONCURRENCY})",
    )
    parser.add_argument(
        "--rate",
        action="append",
        type=number(0.001, 10000.0),
        metavar="R",
        help="open loop with R requests per second on average (repeatable)",
    )
    parser.add_argument(
        "--burstiness",
        type=number(0.01, 1000.0),
        default=1.0,
        metavar="B",
        help="shape of the gaps of an open loop: 1 is Poisson, less is more bursty (default: 1)",
    )
    parser.add_argument(
        "--ramp",
        action="append",
        type=_ramp,
        metavar="LOW:HIGH:LOW",
        help=f"closed loop that grows and shrinks within --seconds (default: {RAMP_SECONDS:g}; "
        "repeatable)",
    )


def _add_passes(parser: Parser) -> None:
    parser.add_argument(
        "--requests",
        type=count,
        metavar="N",
        help=f"the most requests of a pass (default: {REQUESTS}; no limit if --seconds is given)",
    )
    parser.add_argument(
        "--seconds",
        type=number(0.1, 86400.0),
        metavar="S",
        help="after this time a pass sends no more requests",
    )
    add_count(parser, "--repetitions", 3, "passes of each side under each condition")
    parser.add_argument(
        "--time-limit",
        type=number(0.001, 86400.0),
        default=120.0,
        metavar="SECONDS",
        help="time limit of each request (default: 120)",
    )
    parser.add_argument(
        "--seed",
        type=number(0, MAX_SEED, int),
        default=1234,
        help="seed of prompts, arrivals and sampling (default: 1234)",
    )
    parser.add_argument(
        "--warm-up",
        type=int,
        default=4,
        choices=range(65),
        metavar="N",
        help="requests before each condition that are not measured (default: 4)",
    )
    parser.add_argument(
        "--no-prime",
        action="store_true",
        help="do not send each prompt once before it is measured",
    )


def _ramp(text: str) -> tuple[int, int]:
    parts = text.split(":")
    numbers = [int(part) for part in parts if part.isdecimal()]
    if len(parts) == len(numbers) == 3 and numbers[0] == numbers[2]:
        low, high, _ = numbers
        if 1 <= low < high <= MAX_CONCURRENT:
            return low, high
    raise argparse.ArgumentTypeError(
        f"must be LOW:HIGH:LOW with 1 <= LOW < HIGH <= {MAX_CONCURRENT}, got {text!r}"
    )


def _slo(text: str) -> tuple[str, float]:
    name, _, limit = text.partition("=")
    if name not in SLO_NAMES:
        raise argparse.ArgumentTypeError(
            f"must be one of {', '.join(SLO_NAMES)}, then = and milliseconds, got {text!r}"
        )
    return name, number(0.001, 86_400_000.0)(limit)
