"""Heads that name their target: what is read of them, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from engine_adapter.proposers.checkpoint import CheckpointError
from engine_adapter.proposers.methods import METHODS, parse_spec
from engine_adapter.proposers.speculators import METHODS as OF_THE_FORMAT
from engine_adapter.proposers.speculators import read_speculator
from tests.engine_adapter.proposers.block_layouts import as_speculators
from tests.engine_adapter.proposers.dflash_heads import dflash
from tests.engine_adapter.proposers.dspark_heads import dspark
from tests.engine_adapter.proposers.eagle_heads import eagle3, speculators_eagle3
from tests.engine_adapter.proposers.heads import Heads, fasterdecoding_medusa
from tests.engine_adapter.proposers.test_dflash import CONFIG as OF_BLOCKS
from tests.engine_adapter.proposers.test_eagle import CONFIG


def test_the_format_gives_target_method_and_k(tmp_path: Path) -> None:
    heads = speculators_eagle3(CONFIG, aux_layers=[1, 3, 5])
    model = heads.write(tmp_path)
    found = read_speculator(model)
    assert found is not None
    assert found.target == "the/target"
    spec = parse_spec(found.proposer)
    assert (spec.name, spec.method, spec.model) == ("eagle3", "eagle3", model)
    assert spec.num_speculative_tokens == 3


@pytest.mark.parametrize(("method", "k"), [("dflash", 7), ("dspark", 8)])
def test_a_head_that_drafts_blocks_gives_its_target_too(
    method: str, k: int, tmp_path: Path
) -> None:
    """k is the whole block, less the newest token if its place gives no draft."""
    make = {"dflash": dflash, "dspark": dspark}[method]
    heads = make(OF_BLOCKS, target_layers=[1], block_size=8)  # type: ignore[operator]
    found = read_speculator(as_speculators(heads, method).write(tmp_path))
    assert found is not None
    spec = parse_spec(found.proposer)
    assert (found.target, spec.method, spec.num_speculative_tokens) == ("the/target", method, k)


def test_fasterdecodings_heads_give_their_target(tmp_path: Path) -> None:
    model = fasterdecoding_medusa().write(tmp_path)
    found = read_speculator(model)
    assert found is not None
    assert found.target == "lmsys/vicuna-7b-v1.3"
    assert parse_spec(found.proposer).method == "medusa"


def test_other_checkpoints_name_no_target(tmp_path: Path) -> None:
    assert read_speculator(eagle3(CONFIG, aux_layers=[1]).write(tmp_path / "eagle3")) is None
    assert read_speculator(Heads(CONFIG, {}).write(tmp_path / "model")) is None


def test_every_algorithm_of_the_format_that_is_read_is_a_method() -> None:
    assert set(OF_THE_FORMAT.values()) <= {method.name for method in METHODS}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"speculators_model_type": "peagle"},
            "must be dflash, dflash2, dspark or eagle3: no .* speculators",
        ),
        ({"speculators_model_type": None}, "speculators_model_type must be dflash, dflash2,"),
        ({"speculators_config": None}, r"verifier\.name_or_path"),
        ({"speculators_config": {"proposal_methods": [{"speculative_tokens": 3}]}}, "verifier"),
        ({"speculators_config": {"verifier": {"name_or_path": "a/b"}}}, "proposal_methods"),
        (
            {
                "speculators_config": {
                    "verifier": {"name_or_path": "a/b"},
                    "proposal_methods": [{"speculative_tokens": "3"}],
                }
            },
            "integer of at least 1",
        ),
    ],
)
def test_a_head_that_does_not_say_what_is_needed_is_refused(
    change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    heads = speculators_eagle3(CONFIG, aux_layers=[1, 3, 5])
    heads.config |= change
    with pytest.raises(CheckpointError, match=says):
        read_speculator(heads.write(tmp_path))
