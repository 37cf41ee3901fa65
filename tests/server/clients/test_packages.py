"""The versions of the tested clients are fixed, and are those that the documentation names."""

import re
from pathlib import Path

import pytest

from tests.server.clients.packages import PACKAGES, PROGRAMS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "lab" / "clients.md"


def documented() -> dict[str, str]:
    """Package -> version, from the table of tested clients."""
    rows = re.findall(r"^\| ([a-z, -]+) \| ([\d., ]+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    return {
        name: version
        for names, versions in rows
        for name, version in zip(names.split(", "), versions.split(", "), strict=True)
    }


@pytest.mark.parametrize("client", PACKAGES)
def test_the_documentation_names_the_version_that_is_tested(client: str) -> None:
    for pin in PACKAGES[client].split():
        name, _, version = pin.partition("==")
        assert re.fullmatch(r"\d+(\.\d+)+", version), pin
        if name != "openai":  # it is what the client is built on
            assert documented()[name.partition("[")[0]] == version


def test_each_client_has_a_program() -> None:
    want = {f"{client.replace('-', '_')}_program.py" for client in PACKAGES}
    assert {path.name for path in PROGRAMS.glob("*_program.py")} == want
