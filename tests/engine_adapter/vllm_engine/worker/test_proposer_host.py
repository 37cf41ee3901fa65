"""The proposers of a rank: what is prepared for them when they are created."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.proposers.methods import parse_spec
from tests.engine_adapter.vllm_engine.support.dispatch_harness import DispatchHarness, EchoProposer

pytestmark = pytest.mark.needs_vllm


@pytest.mark.parametrize(
    ("fields", "prepared"),
    [
        ({"name": "ngram"}, False),
        ({"name": "grammar"}, True),
        ({"name": "mtp"}, True),
        ({"name": "d", "method": "draft_model", "model": "a/b"}, True),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_constraints_are_prepared_for_all_that_draft_with_them(
    harness: DispatchHarness,
    monkeypatch: pytest.MonkeyPatch,
    fields: Mapping[str, Any],
    prepared: bool,
) -> None:
    host = harness.dispatch.host
    calls: list[str] = []
    constraints = SimpleNamespace(prepare=lambda: calls.append("prepare"))
    monkeypatch.setattr(host, "constraints", constraints)
    for name in "draft_model", "draft_head":
        monkeypatch.setattr(host, name, lambda spec: EchoProposer(1))
    host.create(parse_spec(dict(fields)))
    assert bool(calls) == prepared
