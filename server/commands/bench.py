"""`specgate bench`: measures Specgate beside stock vLLM, and each proposer beside none."""

import argparse
import asyncio
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine_adapter.errors import EngineConfigError, EngineError
from engine_adapter.factory import ENGINES
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.types import NONE
from server.commands import BAD_SETTING, FAILED, complain
from server.commands.admin_client import Parser
from server.settings.sources import load_settings

if TYPE_CHECKING:
    from benchmarks.side import Host

SIDES = ("stock", "one", "all")

Specs = Sequence[ProposerSpec]


def bench(argv: Sequence[str]) -> int:
    """Runs a measurement and writes its files. Returns the process's exit status."""
    first = Parser("specgate bench", "Measures decoding speed, with prefill left out.")
    first.add_argument(
        "action",
        choices=("compare", "gain"),
        help="compare: beside stock vLLM; gain: each proposer beside none; each has --help",
    )
    action = first.parse_args(argv[:1]).action
    parser, run = (_compare_parser(), _compare) if action == "compare" else (_gain_parser(), _gain)
    options = parser.parse_args(argv[1:])
    try:
        specs = parse_specs(options.proposer) or load_settings([], {}).proposer
    except EngineConfigError as error:
        complain(f"--proposer: {str(error).removeprefix('proposer: ')}")
        return BAD_SETTING
    # Ended from outside, it ends its servers first, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(options, argv, specs)
    except (EngineError, ImportError, OSError, RuntimeError, ValueError) as error:
        complain(str(error))
        return FAILED
    return 0


def _compare_parser() -> Parser:
    parser = Parser(
        "specgate bench compare",
        "Measures Specgate beside stock vLLM, on the same model, arguments and proposer.",
    )
    _add_shared(parser, target="demo", levels=(1, 8))
    parser.add_argument(
        "--method",
        action="append",
        metavar="NAME",
        help="proposer to measure (repeatable; default: none and every proposer)",
    )
    parser.add_argument(
        "--side",
        action="append",
        choices=SIDES,
        help="stock: vLLM; one: Specgate with that proposer alone; all: with all of them "
        "(repeatable; default: all three; the first is what the others are compared with)",
    )
    parser.add_argument("--pairs", type=_count, default=30, help="rounds (default: 30)")
    parser.add_argument(
        "--max-tokens", type=_count, default=128, help="length of every answer (default: 128)"
    )
    parser.add_argument(
        "--in-process", action="store_true", help="measure the engines, without their servers"
    )
    return parser


def _gain_parser() -> Parser:
    parser = Parser("specgate bench gain", "Measures every proposer beside none on one server.")
    _add_shared(parser, target="wide", levels=(1, 2, 4, 8, 16))
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
        help="of prompts (repeatable; default: both)",
    )
    parser.add_argument(
        "--minutes", type=float, default=35.0, help="sets the answers' length (default: 35)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few prompts and short answers: does it work at all?"
    )
    return parser


def _add_shared(parser: Parser, target: str, levels: Sequence[int]) -> None:
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
        help="as of `specgate serve` (repeatable; default: the demo's)",
    )
    parser.add_argument(
        "--concurrency",
        action="append",
        type=_count,
        metavar="N",
        help=f"streams at once (repeatable; default: {' '.join(map(str, levels))})",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("bench-results"),
        metavar="FOLDER",
        help="gets the results and the servers' logs (default: bench-results)",
    )
    parser.add_argument(
        "--engine", choices=ENGINES, default="vllm", help="fake tries the harness itself"
    )
    parser.set_defaults(levels=levels)


def _compare(options: argparse.Namespace, argv: Sequence[str], specs: Specs) -> None:
    from benchmarks import report
    from benchmarks.compare import HEAD, Compared, Comparison, compare, line
    from benchmarks.targets import target_path

    plan = Comparison(
        target=target_path(options.target),
        specs=specs,
        methods=options.method or [NONE, *(spec.name for spec in specs)],
        sides=options.side or SIDES,
        levels=options.concurrency or options.levels,
        pairs=options.pairs,
        max_tokens=options.max_tokens,
    )
    about = report.circumstances(argv, options.target)
    results: list[Compared] = []

    def take(result: Compared) -> None:
        results.append(result)
        _say(line(result))

    _say(*HEAD)
    try:
        asyncio.run(compare(plan, _host(options), take))
    finally:
        if results:  # also those from before something went wrong
            report.write(options.out, "compare", about, results, [*HEAD, *map(line, results)])


def _gain(options: argparse.Namespace, argv: Sequence[str], specs: Specs) -> None:
    from benchmarks import plot, report
    from benchmarks.gain import HEAD, QUICK_PROMPTS, Curve, Gain, gain, line, tables
    from benchmarks.targets import target_path
    from benchmarks.workload import KINDS

    curve = Curve(
        target=target_path(options.target),
        specs=specs,
        temperatures=options.temperature or (0.0, 0.7),
        levels=options.concurrency or ((1, 2) if options.quick else options.levels),
        kinds=options.kind or KINDS,
        minutes=0 if options.quick else options.minutes,
        prompts=QUICK_PROMPTS if options.quick else 0,
    )
    about = report.circumstances(argv, options.target)
    plot.check()
    results: list[Gain] = []

    def take(result: Gain) -> None:
        results.append(result)
        _say(line(result))

    _say(*HEAD)
    try:
        asyncio.run(gain(curve, _host(options), take))
    finally:
        if results:
            report.write(options.out, "gain", about, results, tables(results))
    plot.save(results, options.out / "gain.svg", f"Target: {options.target}")


def _host(options: argparse.Namespace) -> "Host":
    if getattr(options, "in_process", False):
        from benchmarks.engines import Engines

        return Engines()
    from benchmarks.servers import Servers

    return Servers(options.out, options.engine)


def _say(*lines: str) -> None:
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
