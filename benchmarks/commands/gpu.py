"""`specgate bench gpu`: what the first hour on a GPU has to show, in one report."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.commands.arguments import (
    BadArgument,
    add_count,
    add_models,
    add_out,
    count,
    number,
    print_lines,
    read_specs,
)
from benchmarks.commands.result_table import ResultTable
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.seam.types import NONE
from server.commands import FAILED, NO_DEVICE, print_error
from server.commands.admin_client import Parser

if TYPE_CHECKING:
    from benchmarks.gpu_check.plan import CheckPlan, Stage

COMPARED = 4
"""Methods whose speed is compared by default: each starts two servers, twice."""

LEVELS = (1, 8)


def make_parser() -> Parser:
    """The arguments."""
    parser = Parser(
        "specgate bench gpu",
        "Checks on a GPU that every proposer is exact, eager and with graphs, where a step waits, "
        "and how fast it is. Writes gpu-check.md and gpu-check.json. "
        f"Exit status {NO_DEVICE}: there is no GPU.",
    )
    add_models(parser, target="demo")
    add_out(parser, "for the report and the logs")
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu runs the same stages without a GPU, to check the check (default: cuda)",
    )
    parser.add_argument(
        "--stage",
        action="append",
        metavar="NAME",
        help="stage to run (repeatable; default: all)",
    )
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float16", "float32"),
        help="of the models (default: bfloat16, on a CPU float32)",
    )
    _add_speed(parser)
    add_count(parser, "--prompts", 12, "prompts of every method")
    add_count(parser, "--max-tokens", 96, "length of every answer")
    parser.add_argument(
        "--limit",
        type=number(1, 86400),
        default=900.0,
        metavar="S",
        help="seconds of a stage; three times that for the speed (default: 900)",
    )
    return parser


def _add_speed(parser: Parser) -> None:
    """Adds what is compared with stock vLLM, and how often."""
    parser.add_argument(
        "--method",
        action="append",
        metavar="NAME",
        help="proposer whose speed is compared, or none (repeatable; default: none and the first "
        f"{COMPARED - 1} proposers that stock vLLM has)",
    )
    parser.add_argument(
        "--concurrency",
        action="append",
        type=count,
        metavar="N",
        help=f"streams of that comparison (repeatable; default: {' '.join(map(str, LEVELS))})",
    )
    add_count(parser, "--pairs", 10, "rounds of the comparison of speed")


def run(options: argparse.Namespace, command: str) -> int:
    """Checks, prints a row for each stage, and writes the report. Returns the exit status."""
    from benchmarks import report
    from benchmarks.gpu_check.device import NoDevice, probe
    from benchmarks.gpu_check.plan import stages
    from benchmarks.gpu_check.report import HEAD, page, passed, table_row
    from benchmarks.gpu_check.running import run_stages

    plan = _plan(options)
    plan_stages = stages(plan)
    if options.stage:
        names = [stage.name for stage in plan_stages]
        if unknown := [name for name in options.stage if name not in names]:
            raise BadArgument(f"--stage: {unknown[0]!r} is unknown; there are {', '.join(names)}")
        plan_stages = [stage for stage in plan_stages if stage.name in options.stage]
    try:
        device = probe(plan.device)
    except NoDevice as error:
        print_error(str(error))
        return NO_DEVICE
    info: dict[str, Any] = {**report.environment_info(command, options.target), **device}
    print_lines(f"Checks on {', '.join(device['devices'])}; logs in {plan.out}")
    with ResultTable(
        plan.out, "gpu-check", info, HEAD, table_row, lambda results: page(info, results)
    ) as table:
        run_stages(plan_stages, plan.out, len(device["devices"]), table.add, _announce)
    print_lines(f"Report: {plan.out / 'gpu-check.md'}")
    return 0 if passed(table.results) else FAILED


def _announce(stage: "Stage") -> None:
    """Tells a person that a stage runs, and for how long at most; apart from the table."""
    limit = f"at most {stage.limit_s / 60:.0f} minutes"
    print(f"{stage.name} runs, {limit}: {stage.purpose}", file=sys.stderr, flush=True)


def _plan(options: argparse.Namespace) -> "CheckPlan":
    from benchmarks.gpu_check.plan import CheckPlan, Device
    from benchmarks.servers import proposer_fields
    from benchmarks.targets import target_path

    specs = read_specs(options)
    device = Device(options.device)
    return CheckPlan(
        device=device,
        target=target_path(options.target),
        proposers=[json.loads(json.dumps(proposer_fields(spec))) for spec in specs],
        out=Path(options.out),
        dtype=options.dtype or ("float32" if device is Device.CPU else "bfloat16"),
        prompts=options.prompts,
        max_tokens=options.max_tokens,
        pairs=options.pairs,
        concurrency=options.concurrency or LEVELS,
        methods=options.method or _compared(specs),
        limit_s=options.limit,
    )


def _compared(specs: Sequence[ProposerSpec]) -> list[str]:
    from benchmarks.sides import STOCK_METHODS

    in_stock = [spec.name for spec in specs if spec.method in STOCK_METHODS]
    return [NONE, *in_stock][:COMPARED]
