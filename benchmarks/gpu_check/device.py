"""Which devices there are; asked in a process of its own, because a broken driver can end it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.plan import Device

LIMIT_S = 120.0

DRIVER = Path("/proc/driver/nvidia/version")


class NoDevice(Exception):
    """There is nothing to check on; the message says why, in one line."""


def probe(device: Device) -> dict[str, Any]:
    """The devices and their software, for the report.

    Raises:
        NoDevice: there is none of the kind.
    """
    command = [sys.executable, "-P", "-m", "benchmarks.gpu_check.device", device.value]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise NoDevice(f"no answer from the device within {LIMIT_S:.0f} s") from None
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise NoDevice(f"torch cannot be asked for devices: {last_line}")
    properties: dict[str, Any] = json.loads(done.stdout)
    if not properties["devices"]:
        raise NoDevice(f"no GPU: torch {properties['torch']} finds none")
    return properties


def main(kind: str) -> None:
    """Prints the answer as JSON."""
    import torch

    info: dict[str, Any] = {"device": kind, "torch": torch.__version__, "cuda": torch.version.cuda}
    if kind == Device.CPU:
        # Two, so that the stage with two devices runs here too: a rank is a process.
        info["devices"] = ["cpu", "cpu"]
    else:
        if DRIVER.is_file():
            info["driver"] = DRIVER.read_text("utf-8").splitlines()[0]
        info["devices"] = []
        for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
            card = torch.cuda.get_device_properties(i)
            gib = card.total_memory / (1 << 30)
            info["devices"].append(f"{card.name}, {gib:.0f} GiB, {card.major}.{card.minor}")
    print(json.dumps(info))


if __name__ == "__main__":
    main(*sys.argv[1:])
