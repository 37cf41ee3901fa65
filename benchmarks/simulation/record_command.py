"""`python -m benchmarks.simulation record`: a trace of every proposer's drafts, for `replay`."""

import argparse
from pathlib import Path

from benchmarks.commands.arguments import (
    BadArgument,
    add_count,
    add_models,
    number,
    print_lines,
    read_specs,
)
from benchmarks.simulation.record import RecordPlan, record
from benchmarks.simulation.trace import save_trace
from benchmarks.targets import target_path
from server.commands.admin_client import Parser


def make_parser() -> Parser:
    """The arguments."""
    parser = Parser(
        "python -m benchmarks.simulation record",
        "Records what every proposer drafts at every position of the demo's measured prompts, and "
        "what it costs, on one engine in this process.",
    )
    add_models(parser, target="demo")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="file of the trace (.json.gz)"
    )
    parser.add_argument(
        "--temperature",
        action="append",
        type=number(0.0, 2.0),
        metavar="T",
        help="temperature of the requests (repeatable; default: 0)",
    )
    add_count(parser, "--requests", 40, "the most requests of each kind of prompts and temperature")
    add_count(parser, "--max-tokens", 86, "length of every answer")
    add_count(parser, "--streams", 4, "requests at a time")
    add_count(parser, "--timed-steps", 80, "steps at each number of rows that give the costs")
    parser.add_argument(
        "--minutes",
        type=number(0.1, 1440.0),
        default=4.0,
        help="after this time no new request begins (default: 4)",
    )
    return parser


def run(options: argparse.Namespace, command: str) -> int:
    """Records and writes. Returns the exit status."""
    plan = RecordPlan(
        target=target_path(options.target),
        name=Path(options.target).name,
        specs=read_specs(options),
        temperatures=options.temperature or (0.0,),
        streams=options.streams,
        requests=options.requests,
        max_tokens=options.max_tokens,
        timed_steps=options.timed_steps,
        seconds=60 * options.minutes,
    )
    # Before minutes of recording are lost.
    if options.out.is_dir():
        raise BadArgument(f"--out: {options.out} is a folder; name a file in it")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    trace = record(plan, print_lines)
    save_trace(trace, options.out)
    size = options.out.stat().st_size
    print_lines(f"{options.out}: {len(trace.requests)} requests, {size} bytes")
    return 0
