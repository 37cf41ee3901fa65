"""Arguments that several measurements share."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.sides import DEFAULT_SIDES, Side
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.seam.factory import ENGINES
from engine_adapter.seam.types import NONE
from server.commands.admin_client import Parser
from server.settings.sources import load_settings

if TYPE_CHECKING:
    from benchmarks.system import SystemLauncher

Specs = Sequence[ProposerSpec]

MAX_SEED = 2**31 - 1


class BadArgument(Exception):
    """An argument that the parser alone cannot judge; the message names it."""


def add_models(parser: Parser, target: str) -> None:
    """Adds `--target` and `--proposer`."""
    parser.add_argument(
        "--target",
        default=target,
        type=_model,
        metavar="MODEL",
        help=f"demo, its wide twin (wide), or a path or id (default: {target})",
    )
    parser.add_argument(
        "--proposer",
        action="append",
        default=[],
        type=json_object,
        metavar="JSON",
        help="as for `specgate serve` (repeatable; default: the demo's)",
    )


def add_load(parser: Parser, levels: Sequence[int]) -> None:
    """Adds `--concurrency`, `--out` and `--engine`."""
    parser.add_argument(
        "--concurrency",
        action="append",
        type=count,
        metavar="N",
        help=f"concurrent streams (repeatable; default: {' '.join(map(str, levels))})",
    )
    add_out(parser, "for the results and the servers' logs")
    parser.add_argument(
        "--engine", choices=ENGINES, default="vllm", help="fake tests the harness itself"
    )
    parser.set_defaults(levels=levels)


def add_out(parser: Parser, purpose: str) -> None:
    """Adds `--out`."""
    parser.add_argument(
        "--out",
        type=_folder,
        default=Path("bench-results"),
        metavar="FOLDER",
        help=f"{purpose} (default: bench-results)",
    )


def add_count(parser: Parser, flag: str, default: int, purpose: str) -> None:
    """Adds a number of at least 1."""
    parser.add_argument(
        flag, type=count, default=default, metavar="N", help=f"{purpose} (default: {default})"
    )


def add_sides(parser: Parser, *more: Side) -> None:
    """Adds `--method` and `--side`; `more` are sides that only this measurement has."""
    parser.add_argument(
        "--method",
        action="append",
        metavar="NAME",
        help="proposer to measure (repeatable; default: none and every proposer)",
    )
    parser.add_argument(
        "--side",
        action="append",
        choices=[side.value for side in (*DEFAULT_SIDES, *more)],
        help="stock: vLLM; one: Specgate with only that proposer; all: Specgate with all of them "
        "(repeatable; default: these three; the others are compared with the first)"
        + ("; stock-v2: vLLM on its model runner V2" if Side.STOCK_V2 in more else ""),
    )


def add_servers(parser: Parser) -> None:
    """Adds how the servers run: dtype, memory and graphs."""
    parser.add_argument("--dtype", metavar="NAME", help="of the models (default: float32)")
    parser.add_argument(
        "--kv-cache-memory-bytes", type=count, metavar="N", help="of each server (default: 512 MiB)"
    )
    parser.add_argument(
        "--gpu-memory-utilization",
        type=number(0.01, 1),
        metavar="SHARE",
        help="of a GPU's memory, which must be free when a server starts (default: vLLM's); all "
        "servers of a comparison run at the same time",
    )
    parser.add_argument(
        "--graphs", action="store_true", help="compile models and capture graphs, as GPUs need it"
    )
    parser.set_defaults(stock_defaults=False)


def method_names(options: argparse.Namespace, specs: Specs) -> list[str]:
    """The proposers to measure."""
    return options.method or [NONE, *(spec.name for spec in specs)]


def measured_sides(options: argparse.Namespace) -> tuple[Side, ...]:
    """The sides to measure."""
    return tuple(Side(name) for name in options.side or DEFAULT_SIDES)


def launcher(options: argparse.Namespace) -> "SystemLauncher":
    """What starts the measured systems."""
    replaced = {
        "dtype": options.dtype,
        "kv-cache-memory-bytes": options.kv_cache_memory_bytes,
        "gpu-memory-utilization": options.gpu_memory_utilization,
    }
    if getattr(options, "in_process", False):
        from benchmarks.engines import EngineLauncher

        if options.graphs or options.stock_defaults or any(replaced.values()):
            raise BadArgument("--in-process: measures engines with the default arguments only")
        return EngineLauncher()
    from benchmarks.servers import ServerLauncher

    return ServerLauncher(
        options.out,
        options.engine,
        {name: str(value) for name, value in replaced.items() if value is not None},
        graphs=options.graphs,
        stock_defaults=options.stock_defaults,
    )


def print_lines(*lines: str) -> None:
    """Prints at once, also into a pipe."""
    if lines:
        print(*lines, sep="\n", flush=True)


def json_object(text: str) -> dict[str, Any]:
    """The type of an argument: a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text}")
    return value


def count(text: str) -> int:
    """The type of an argument: an integer of at least 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def number(low: float, high: float, kind: type = float) -> Callable[[str], float]:
    """The type of an argument: a number in [low, high], an integer if `kind` is `int`."""

    def convert(text: str) -> float:
        try:
            value: float = kind(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            noun, bounds = "a number", f"{low:g} to {high:g}"
            if kind is int:
                noun, bounds = "an integer", f"{low} to {high}"
            raise argparse.ArgumentTypeError(f"must be {noun} from {bounds}, got {text!r}")
        return value

    return convert


def _model(text: str) -> str:
    """The type of an argument: a model's folder, which must exist, or its id."""
    is_id = text.count("/") <= 1 and not text.startswith(("/", ".", "~"))
    if not is_id and not Path(text).is_dir():
        raise argparse.ArgumentTypeError(
            f"the folder {text} does not exist; name a folder or an id"
        )
    return text


def _folder(text: str) -> Path:
    """The type of an argument: a folder, which need not exist."""
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a file; name a folder")
    return path


def read_specs(options: argparse.Namespace) -> Specs:
    """The proposers of `--proposer`, or the demo's. Raises `BadArgument`."""
    try:
        return parse_specs(options.proposer) or load_settings([], {}).proposer
    except EngineConfigError as error:
        raise BadArgument(f"--proposer: {error.message}") from None
