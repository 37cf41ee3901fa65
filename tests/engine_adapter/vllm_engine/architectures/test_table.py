"""The table of docs/lab/architectures.md, the catalog and the list in the server are the same."""

import json
import re
from pathlib import Path

import pytest

from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.vllm_engine.gateway import preflight
from engine_adapter.vllm_engine.gateway.proven_models import PROVEN
from tests import documentation
from tests.engine_adapter.vllm_engine.architectures import results
from tests.engine_adapter.vllm_engine.architectures.architecture import Architecture
from tests.engine_adapter.vllm_engine.architectures.catalog import REFUSED, SERVED
from tests.engine_adapter.vllm_engine.architectures.results import CHECKS, Result
from tests.engine_adapter.vllm_engine.architectures.table import PAGE, PROPOSERS, render, written


def test_the_results_are_those_of_architectures_in_the_catalog() -> None:
    """An architecture without a result has not been run, and is not in the table."""
    names = [one.name for one in SERVED]
    assert set(results.load()) <= set(names)
    assert len(set(names)) == len(names)


def test_every_result_is_proven_with_all_its_proposers() -> None:
    catalog = {one.name: one for one in SERVED}
    for name, result in results.load().items():
        assert result.proven, name
        one = catalog[name]
        without = {"eagle"} if one.no_eagle else set()
        without |= {"self"} if one.recurrent else set()
        assert set(result.cells) == set(PROPOSERS) - without, name


def test_the_page_has_the_table_of_the_results() -> None:
    assert written(PAGE.read_text(), results.load()) == PAGE.read_text()


def test_the_server_knows_the_architectures_of_the_table() -> None:
    assert {result.architecture for result in results.load().values()} == PROVEN


def test_the_users_page_lists_what_the_server_knows() -> None:
    page = (PAGE.parents[1] / "models.md").read_text("utf-8")
    section = documentation.section(page, "Proven architectures")
    assert set(re.findall(r"`(\w+(?:ForCausalLM|LMHeadModel))`", section)) == PROVEN


@pytest.mark.parametrize("fault", ["differs", "missing"])
def test_the_table_names_a_check_that_fails(fault: str) -> None:
    found = results.load()
    first = found[SERVED[0].name]
    if fault == "differs":
        first.cells["self"]["switch"].add(False)
    else:
        del first.cells["self"]["switch"]
    assert not first.proven
    assert "fails: switch" in render(found)
    assert "fails" not in render(results.load())


def test_a_result_with_a_wrong_draft_is_not_proven() -> None:
    result = Result("LlamaForCausalLM", "full")
    for check in CHECKS:
        result.cell("self", check).add(True)
    assert result.proven
    result.own_wrong = 1
    assert not result.proven


@pytest.mark.needs_vllm
@pytest.mark.parametrize("one", REFUSED, ids=[one.name for one in REFUSED])
def test_what_the_table_calls_refused_is_refused(one: Architecture, tmp_path: Path) -> None:
    fields = {"model_type": one.model_type, **one.config}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    reason = one.refused.partition(" (")[0].partition(",")[0]
    with pytest.raises(EngineConfigError, match=reason):
        preflight.check_models(EngineConfig(str(tmp_path), "m", ()))
