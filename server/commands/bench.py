"""`specgate bench`: measures Specgate against stock vLLM, and each proposer against none."""

import argparse
import asyncio
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.sides import Side
from engine_adapter.errors import EngineConfigError, EngineError
from engine_adapter.factory import ENGINES
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.types import NONE
from server.commands import BAD_SETTING, FAILED, print_error
from server.commands.admin_client import Parser
from server.settings.sources import load_settings

if TYPE_CHECKING:
    from benchmarks.system import SystemLauncher

Specs = Sequence[ProposerSpec]


def bench(argv: Sequence[str]) -> int:
    """Runs a measurement and reports its results. Returns the process's exit status."""
    actions = {
        "compare": (_compare_parser, _compare),
        "gain": (_gain_parser, _gain),
        "step": (_step_parser, _step),
    }
    first = Parser("specgate bench", "Measures decoding speed without prefill.")
    first.add_argument(
        "action",
        choices=actions,
        help="compare: servers against stock vLLM; gain: each proposer against none; "
        "step: CPU time of an engine step; each has --help",
    )
    make_parser, run = actions[first.parse_args(argv[:1]).action]
    options = make_parser().parse_args(argv[1:])
    try:
        specs = parse_specs(options.proposer) or load_settings([], {}).proposer
    except EngineConfigError as error:
        print_error(f"--proposer: {error.message}")
        return BAD_SETTING
    # SIGTERM ends the measured servers first, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(options, argv, specs)
    except (EngineError, ImportError, OSError, RuntimeError, ValueError) as error:
        print_error(str(error))
        return FAILED
    return 0


def _compare_parser() -> Parser:
    parser = Parser(
        "specgate bench compare",
        "Compares Specgate with stock vLLM, on the same model, arguments and proposer.",
    )
    _add_models(parser, target="demo")
    _add_load(parser, levels=(1, 8))
    _add_sides(parser)
    parser.add_argument("--pairs", type=_count, default=30, help="rounds (default: 30)")
    parser.add_argument(
        "--max-tokens", type=_count, default=128, help="length of every answer (default: 128)"
    )
    parser.add_argument(
        "--in-process", action="store_true", help="measure the engines, without their servers"
    )
    return parser


def _gain_parser() -> Parser:
    parser = Parser(
        "specgate bench gain", "Measures the speedup of every proposer over none on one server."
    )
    _add_models(parser, target="wide")
    _add_load(parser, levels=(1, 2, 4, 8, 16))
    parser.add_argument(
        "--temperature",
        action="append",
        type=float,
        metavar="T",
        help="(repeatable; default: 0 and 0.7)",
    )
    parser.add_argument(
        "--kind",
        action="append",
        choices=("quote", "free"),
        help="kind of prompts (repeatable; default: both)",
    )
    parser.add_argument(
        "--minutes", type=float, default=35.0, help="approximate duration (default: 35)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few prompts and short answers, to check that it works"
    )
    return parser


def _step_parser() -> Parser:
    parser = Parser(
        "specgate bench step",
        "Compares the CPU time of an engine step with stock vLLM's, without a server.",
    )
    _add_models(parser, target="demo")
    _add_sides(parser)
    parser.add_argument(
        "--streams", type=_count, default=1, metavar="N", help="concurrent requests (default: 1)"
    )
    parser.add_argument("--rounds", type=_count, default=60, help="turns per side (default: 60)")
    parser.add_argument(
        "--profile",
        type=_count,
        metavar="STEPS",
        help="profile each side over this number of steps instead",
    )
    return parser


def _add_models(parser: Parser, target: str) -> None:
    parser.add_argument(
        "--target",
        default=target,
        metavar="MODEL",
        help=f"demo, its wide twin (wide), or a path or id (default: {target})",
    )
    parser.add_argument(
        "--proposer",
        action="append",
        default=[],
        type=_json,
        metavar="JSON",
        help="as for `specgate serve` (repeatable; default: the demo's)",
    )


def _add_load(parser: Parser, levels: Sequence[int]) -> None:
    parser.add_argument(
        "--concurrency",
        action="append",
        type=_count,
        metavar="N",
        help=f"concurrent streams (repeatable; default: {' '.join(map(str, levels))})",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("bench-results"),
        metavar="FOLDER",
        help="for the results and the servers' logs (default: bench-results)",
    )
    parser.add_argument(
        "--engine", choices=ENGINES, default="vllm", help="fake tests the harness itself"
    )
    parser.set_defaults(levels=levels)


def _add_sides(parser: Parser) -> None:
    parser.add_argument(
        "--method",
        action="append",
        metavar="NAME",
        help="proposer to measure (repeatable; default: none and every proposer)",
    )
    parser.add_argument(
        "--side",
        action="append",
        choices=[side.value for side in Side],
        help="stock: vLLM; one: Specgate with only that proposer; all: Specgate with all of them "
        "(repeatable; default: all three; the others are compared with the first)",
    )


def _compare(options: argparse.Namespace, argv: Sequence[str], specs: Specs) -> None:
    from benchmarks import report
    from benchmarks.compare import TABLE_HEAD, Comparison, ComparisonPlan, compare, table_row
    from benchmarks.targets import target_path

    plan = ComparisonPlan(
        target=target_path(options.target),
        specs=specs,
        methods=_methods(options, specs),
        sides=_sides(options),
        levels=options.concurrency or options.levels,
        pairs=options.pairs,
        max_tokens=options.max_tokens,
    )
    info = report.environment_info(argv, options.target)
    results: list[Comparison] = []

    def on_result(result: Comparison) -> None:
        results.append(result)
        _print(table_row(result))

    _print(*TABLE_HEAD)
    try:
        asyncio.run(compare(plan, _launcher(options), on_result))
    finally:
        if results:  # those before a failure are written too
            report.write(
                options.out, "compare", info, results, [*TABLE_HEAD, *map(table_row, results)]
            )


def _gain(options: argparse.Namespace, argv: Sequence[str], specs: Specs) -> None:
    from benchmarks import plot, report
    from benchmarks.speedup import (
        QUICK_PROMPTS,
        TABLE_HEAD,
        Speedup,
        SpeedupPlan,
        measure_speedups,
        table_row,
        tables,
    )
    from benchmarks.targets import target_path
    from demo.prompts import KINDS

    plan = SpeedupPlan(
        target=target_path(options.target),
        specs=specs,
        temperatures=options.temperature or (0.0, 0.7),
        levels=options.concurrency or ((1, 2) if options.quick else options.levels),
        kinds=options.kind or KINDS,
        minutes=0 if options.quick else options.minutes,
        prompts=QUICK_PROMPTS if options.quick else 0,
    )
    info = report.environment_info(argv, options.target)
    plot.check()
    results: list[Speedup] = []

    def on_result(result: Speedup) -> None:
        results.append(result)
        _print(table_row(result))

    _print(*TABLE_HEAD)
    try:
        asyncio.run(measure_speedups(plan, _launcher(options), on_result))
    finally:
        if results:
            report.write(options.out, "gain", info, results, tables(results))
    plot.save(results, options.out / "gain.svg", f"Target: {options.target}")


def _step(options: argparse.Namespace, argv: Sequence[str], specs: Specs) -> None:
    from benchmarks.step_cost import StepPlan, measure_steps
    from benchmarks.targets import target_path

    plan = StepPlan(
        target=target_path(options.target),
        specs=specs,
        methods=_methods(options, specs),
        sides=_sides(options),
        streams=options.streams,
        rounds=options.rounds,
        profile_steps=options.profile,
    )
    measure_steps(plan, _print)


def _methods(options: argparse.Namespace, specs: Specs) -> list[str]:
    return options.method or [NONE, *(spec.name for spec in specs)]


def _sides(options: argparse.Namespace) -> tuple[Side, ...]:
    return tuple(Side(name) for name in options.side or Side)


def _launcher(options: argparse.Namespace) -> "SystemLauncher":
    if getattr(options, "in_process", False):
        from benchmarks.engines import EngineLauncher

        return EngineLauncher()
    from benchmarks.servers import ServerLauncher

    return ServerLauncher(options.out, options.engine)


def _print(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text}")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)
