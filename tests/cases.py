"""Parameters of tests of which `make test` runs a part, and `make prove` the others."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def proved_beyond(quick: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """The values for `parametrize`; those that are not quick are marked `prove`.

    A tuple is the values of several parameters.
    """
    return [
        value
        if value in quick
        else pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.prove
        )
        for value in values
    ]
