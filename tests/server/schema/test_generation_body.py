"""What the fields of a body become for the engine."""

from typing import Any

import pytest

from engine_adapter.seam.types import RepetitionDetection
from server.schema.generation_body import Repetition


@pytest.mark.parametrize(
    ("fields", "detection"),
    [
        ({}, None),
        ({"min_count": 5}, None),
        ({"max_pattern_size": 6, "min_count": 3}, RepetitionDetection(6, 3, 1)),
        (
            {"max_pattern_size": 6, "min_count": 3, "min_pattern_size": 2},
            RepetitionDetection(6, 3, 2),
        ),
        ({"max_pattern_size": 64, "min_count": 16}, RepetitionDetection(64, 16, 1)),
    ],
)
def test_a_pattern_of_no_tokens_is_not_looked_for(
    fields: dict[str, Any], detection: RepetitionDetection | None
) -> None:
    assert Repetition(**fields).detection() == detection
