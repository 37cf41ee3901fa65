"""`specgate bench load`: one or several servers under load, over HTTP."""

import argparse
import asyncio
import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from benchmarks.commands.arguments import BadArgument, print_lines
from benchmarks.commands.load_arguments import CONCURRENCY, RAMP_SECONDS, REQUESTS, make_parser
from server.commands import FAILED, print_error

if TYPE_CHECKING:
    from benchmarks.load.arrivals import Arrivals
    from benchmarks.load.results import ConditionResults
    from benchmarks.load.run import LoadPlan, LoadRun
    from benchmarks.load.sides import Side

__all__ = ["make_parser", "run"]

LATE_MS, LATE_SHARE = 10.0, 0.1
"""A warning is printed if the lateness at the percentile 99 exceeds both: this number of
milliseconds, and this share of the median TTFT."""


def run(options: argparse.Namespace, command: str) -> int:
    """Measures, prints and writes, also after an interruption. Returns the exit status."""
    from benchmarks import plot, report
    from benchmarks.load.display import Display
    from benchmarks.load.results import all_results
    from benchmarks.load.run import LoadRun

    plan, slo = _plan(options), dict(options.slo)
    if not options.no_html:
        plot.check()
    info = {**report.environment_info(command), "slo_ms": slo}
    names = [side.name for side in plan.sides]
    display = Display(plan, slo, print_lines)
    measured = LoadRun(plan, display)
    try:
        with display:
            asyncio.run(_measure(measured))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        results = all_results(measured.passes, names, slo)
        if results:
            _write(options, info, measured, results)
    print_lines(*_late(results), *_shorter(measured))
    failed = [
        f"{figures.side} ({figures.condition.name}): {figures.first_error}"
        for result in results
        for figures in result.figures
        if sum(figures.errors.values()) == figures.requests
    ]
    if failed:
        print_error(f"no request succeeded: {'; '.join(failed)}")
        return FAILED
    return 0


async def _measure(measured: "LoadRun") -> None:
    """Runs the plan. SIGTERM cancels it, as Ctrl-C does.

    An exception that a signal's handler raises anywhere in the loop could lose the samples.
    """
    main = asyncio.current_task()
    assert main is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
    await measured.run()


def _late(results: Sequence["ConditionResults"]) -> Iterator[str]:
    """A warning for each side whose requests this machine sent too late to measure it well."""
    for result in results:
        for figures in result.figures:
            late, ttft = figures.late_ms, figures.latencies.ttft
            if late and ttft and late.p99 > max(LATE_MS, LATE_SHARE * ttft.p50):
                yield (
                    f"Warning: {figures.side} ({figures.condition.name}): 1 % of the requests were "
                    f"sent more than {late.p99:.0f} ms late; the client's machine is overloaded"
                )


def _shorter(measured: "LoadRun") -> Iterator[str]:
    """A warning for each side that does not do what `--ignore-eos` asks."""
    for target in measured.targets:
        if "ignore_eos" in target.refused:
            yield f"Warning: {target.side.name} refuses ignore_eos; its answers may be shorter"


def _write(
    options: argparse.Namespace,
    info: dict[str, object],
    measured: "LoadRun",
    results: Sequence["ConditionResults"],
) -> None:
    from benchmarks.load import results as files

    files.write(options.out, info, measured, results)
    if not options.no_html:
        from benchmarks.load.page import page

        text = page({**info, **files.described(measured)}, measured.passes, results)
        (options.out / "load.html").write_text(text, encoding="utf-8")
    print_lines(f"Written to {options.out}")


def _plan(options: argparse.Namespace) -> "LoadPlan":
    """The plan. Raises `BadArgument` for what does not fit together, `OSError` for a file."""
    from benchmarks.load.prompts import Split
    from benchmarks.load.run import LoadPlan
    from benchmarks.load.workloads import workload

    seconds, requests = options.seconds, options.requests
    if options.ramp and seconds is None:
        seconds = RAMP_SECONDS
    if requests is None and seconds is None:
        requests = REQUESTS
    split = Split(options.split)
    try:
        return LoadPlan(
            sides=_sides(options),
            workloads=[
                workload(name, split) for name in dict.fromkeys(options.workload or ["rag"])
            ],
            loads=_loads(options, seconds),
            temperatures=tuple(dict.fromkeys(options.temperature or ())),
            repetitions=options.repetitions,
            requests=requests,
            seconds=seconds,
            max_tokens=options.max_tokens,
            ignore_eos=options.ignore_eos,
            split=split,
            seed=options.seed,
            time_limit_s=options.time_limit,
            warm_up=options.warm_up,
            prime=not options.no_prime,
        )
    except ValueError as error:
        raise BadArgument(str(error)) from None


def _sides(options: argparse.Namespace) -> list["Side"]:
    from benchmarks.load.sides import Side, parse_side

    url, key = options.url, options.key_variable
    try:
        sides = [parse_side(text, url, key) for text in options.side or ()]
        sides = sides or [Side("server", url, key_variable=key)]
        for side in sides:
            side.endpoint()
    except ValueError as error:
        raise BadArgument(f"--side: {error}") from None
    return sides


def _loads(options: argparse.Namespace, seconds: float | None) -> list["Arrivals"]:
    from benchmarks.load.arrivals import ClosedLoop, OpenLoop, Ramp

    loads: list[Arrivals] = [ClosedLoop(level) for level in options.concurrency or ()]
    loads += [OpenLoop(rate, options.burstiness) for rate in options.rate or ()]
    loads += [Ramp(low, high, seconds or RAMP_SECONDS) for low, high in options.ramp or ()]
    return list(dict.fromkeys(loads)) or [ClosedLoop(CONCURRENCY)]
