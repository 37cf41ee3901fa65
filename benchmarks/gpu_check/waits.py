"""Where a step waits for the device: what vLLM's check (`VLLM_GPU_SYNC_CHECK`) prints, counted."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

_WARNING = re.compile(r"^(?:\(.*?\) )?(?P<file>/\S+?):(?P<line>\d+): UserWarning: (?P<text>.*)$")
_WAITS = {
    "called a synchronizing CUDA operation": "waits",
    "that may be silently synchronous": "copy that may wait",
}
_ROOTS = ("site-packages", "engine_adapter")


def waits_in(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The places where the CPU waited for the device, those with most waits first.

    vLLM prints a warning for each. A line of the engine's log may stand before it.
    """
    found: Counter[tuple[str, str]] = Counter()
    for line in lines:
        if not (match := _WARNING.match(line)):
            continue
        kind = next((kind for text, kind in _WAITS.items() if text in match["text"]), None)
        if kind is not None:
            found[f"{_shortened(match['file'])}:{match['line']}", kind] += 1
    return [
        {"where": where, "what": kind, "times": times}
        for (where, kind), times in found.most_common()
    ]


def _shortened(path: str) -> str:
    """The path from the package on."""
    parts = PurePath(path).parts
    for root in _ROOTS:
        if root in parts:
            at = len(parts) - 1 - parts[::-1].index(root)
            return "/".join(parts[at + (root == "site-packages") :])
    return path
