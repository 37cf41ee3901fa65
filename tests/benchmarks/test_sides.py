"""The sides of a comparison: the proposers that they need and load."""

import pytest

from benchmarks.sides import Side, loaded_specs, specs_by_name, supported_sides
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.vllm_engine import compat
from tests.benchmarks.fake_systems import HEADS, NGRAM

CASCADE = ProposerSpec("both", "cascade", 5, None, {"members": ["look", "heads"]})
SPECS = (NGRAM, HEADS, CASCADE)


def test_named_specs_keep_the_order_of_the_names() -> None:
    assert list(specs_by_name(["heads", "none", "look"], SPECS).items()) == [
        ("heads", HEADS),
        ("none", None),
        ("look", NGRAM),
    ]


def test_a_name_without_a_spec_is_refused() -> None:
    with pytest.raises(ValueError, match="no proposer 'draft'; the proposers are look, heads"):
        specs_by_name(["look", "draft"], [NGRAM, HEADS])


def test_stock_vllm_is_a_side_only_of_methods_that_it_has() -> None:
    every = tuple(Side)
    assert supported_sides(every, None) == list(Side)
    specgate = ["one", "all"]
    assert supported_sides(every, NGRAM) == ["stock", *specgate]
    assert supported_sides(every, HEADS) == supported_sides(every, CASCADE) == specgate


@pytest.mark.parametrize(("version", "has_it"), [("0.32.0", True), ("0.33.0+cpu", False)])
def test_medusa_is_compared_with_a_stock_vllm_that_still_has_it(
    monkeypatch: pytest.MonkeyPatch, version: str, has_it: bool
) -> None:
    monkeypatch.setattr(compat, "installed_version", lambda: version)
    medusa = ProposerSpec("medusa", "medusa", 4, "folder", {})
    assert (Side.STOCK in supported_sides(tuple(Side), medusa)) is has_it


def test_one_loads_the_proposer_with_its_members_and_all_loads_everything() -> None:
    assert loaded_specs(Side.ONE, NGRAM, SPECS) == [NGRAM]
    assert loaded_specs(Side.ONE, CASCADE, SPECS) == [NGRAM, HEADS, CASCADE]
    assert loaded_specs(Side.ONE, None, SPECS) == []
    assert loaded_specs(Side.ALL, NGRAM, SPECS) == SPECS


def test_a_member_that_comes_twice_in_a_chain_is_loaded_once() -> None:
    chain = ProposerSpec("long", "chain", 5, None, {"members": ["look", "heads", "look"]})
    assert loaded_specs(Side.ONE, chain, SPECS) == [NGRAM, HEADS, chain]
