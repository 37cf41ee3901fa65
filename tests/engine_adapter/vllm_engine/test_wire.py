"""Values in vLLM's dictionaries are read back unchanged."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.policies.contract import ProposerTraits
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.types import PLAIN, SpecDecodeParams, SpecMethod
from engine_adapter.vllm_engine.wire import (
    AdditionalConfig,
    SpecgateConfig,
    from_extra_args,
    grammar_bytes_of,
    to_extra_args,
)

LOOKUP = {"name": "lookup", "method": "ngram", "num_speculative_tokens": 3}
TREE = {"name": "suffix", "suffix_decoding_min_token_prob": 0.2}
SMALL = {"name": "small", "method": "draft_model", "model": "a/b"}


def through_vllm(config: SpecgateConfig) -> SpecgateConfig:
    """To an engine process and back; the configuration must be plain enough for JSON too."""
    carried = json.loads(json.dumps(config.to_additional_config().data))
    return SpecgateConfig.from_vllm_config(SimpleNamespace(additional_config=carried))


def read_back(extra_args: Any) -> SpecDecodeParams:
    return from_extra_args(SimpleNamespace(extra_args=extra_args))


@pytest.mark.parametrize("pipe", [None, "/tmp/pipe"])
@pytest.mark.parametrize("fields", [[], [LOOKUP], [LOOKUP, TREE, SMALL]])
def test_proposers_and_pipe_reach_the_engine(fields: list[Any], pipe: str | None) -> None:
    config = SpecgateConfig(parse_specs(fields), pipe)
    assert through_vllm(config) == config


def test_policies_and_the_primary_reach_the_engine() -> None:
    parameters = {"auto": {"min_gain": 0.1}, "load": {"disable_by_batch_size": 4}}
    config = SpecgateConfig(parse_specs([LOOKUP]), None, parameters, "lookup")
    assert through_vllm(config) == config


def test_policies_see_what_kind_each_proposer_is() -> None:
    cascade = {"name": "both", "method": "cascade", "members": ["lookup", "small"]}
    chain = {"name": "chain", "members": ["small", "lookup"]}
    predicted = {"name": "guess", "method": "chain", "members": ["prediction", "lookup"]}
    around = {"name": "around", "method": "chain", "members": ["lookup", "small", "lookup"]}
    others: list[dict[str, Any]] = [cascade, chain, around, predicted, {"name": "prediction"}]
    config = SpecgateConfig(parse_specs([LOOKUP, TREE, SMALL, *others]))
    by_name = {traits.name: traits for traits in config.traits}
    assert by_name["lookup"] == ProposerTraits("lookup", 3, lookup=True)
    assert by_name["suffix"].lookup
    small = by_name["small"]
    assert (small.lookup, small.keeps_kv, small.selectable) == (False, True, True)
    assert {t.name for t in config.traits if t.ends_early} == {"chain", "around", "guess"}
    assert {t.name for t in config.traits if t.keeps_kv} == {"small", "both", "chain", "around"}
    assert {t.name for t in config.traits if t.selectable} == {"lookup", "suffix", "small", "chain"}
    assert {t.name for t in config.traits if t.lookup} == {"lookup", "suffix"}


def test_policies_see_which_proposer_may_end_its_drafts() -> None:
    (traits,) = SpecgateConfig(parse_specs([SMALL | {"min_confidence": 0.5}])).traits
    assert traits.ends_early


def test_the_targets_own_mtp_layers_are_not_a_lookup() -> None:
    (traits,) = SpecgateConfig(parse_specs([{"name": "mtp"}])).traits
    assert (traits.lookup, traits.keeps_kv, traits.selectable) == (False, True, True)


@pytest.mark.parametrize(
    ("fields", "needs"), [([], False), ([LOOKUP, TREE], False), ([LOOKUP, SMALL], True)]
)
def test_draft_kv_is_needed_by_proposers_that_write_some(fields: list[Any], needs: bool) -> None:
    assert SpecgateConfig(parse_specs(fields)).needs_draft_kv is needs


@pytest.mark.parametrize(
    "params",
    [
        SpecDecodeParams(),
        SpecDecodeParams(SpecMethod("small", 4), pinned=True, switch_epoch=7),
        SpecDecodeParams(PLAIN, pinned=True, switch_epoch=1),
        SpecDecodeParams(SpecMethod("auto", 8), pinned=True, prediction=(1, 2)),
        SpecDecodeParams(SpecMethod("ngram", 2), streams_stats=True),
    ],
)
def test_a_requests_choice_reaches_the_scheduler(params: SpecDecodeParams) -> None:
    assert read_back(json.loads(json.dumps(to_extra_args(params)))) == params


@pytest.mark.parametrize("extra_args", [None, {}, {"another": 1}])
def test_a_request_that_is_not_the_gateways_decodes_plainly(extra_args: Any) -> None:
    assert read_back(extra_args) == SpecDecodeParams()


def test_a_request_without_sampling_parameters_decodes_plainly() -> None:
    assert from_extra_args(None) == SpecDecodeParams()


def test_other_extra_arguments_are_ignored() -> None:
    params = SpecDecodeParams(SpecMethod("ngram", 2))
    assert read_back({"another": 1, **to_extra_args(params)}) == params


def compiled(fields: list[Any], pipe: str | None = None, policies: Any = None) -> AdditionalConfig:
    return SpecgateConfig(parse_specs(fields), pipe, policies or {}).to_additional_config()


def test_a_start_finds_the_code_that_an_earlier_one_compiled() -> None:
    one = compiled([LOOKUP, SMALL], "/tmp/one", {"load": {"disable_by_batch_size": 4}})
    other = compiled([SMALL | {"num_speculative_tokens": 2}, LOOKUP], "/tmp/other")
    assert one.compute_hash() == other.compute_hash()


def test_a_head_that_reads_the_targets_layers_changes_the_targets_code() -> None:
    head = {"name": "head", "method": "eagle3", "model": "a/c"}
    hashes = {
        compiled(fields).compute_hash()
        for fields in ([SMALL], [SMALL, head], [SMALL, head | {"model": "a/d"}])
    }
    assert len(hashes) == 3


def test_proposers_with_one_checkpoint_have_code_of_their_own() -> None:
    config = compiled([SMALL, SMALL | {"name": "same"}])
    of_each = [config.compiled_for(name) for name in ("small", "same")]
    assert len({made.compute_hash() for made in (config, *of_each)}) == 3
    specs = parse_specs([SMALL, SMALL | {"name": "same"}])
    made = SimpleNamespace(additional_config=of_each[0])
    assert SpecgateConfig.from_vllm_config(made) == SpecgateConfig(specs)


def test_the_size_of_a_compiled_constraint_crosses_to_the_engine() -> None:
    extra_args = json.loads(json.dumps(to_extra_args(SpecDecodeParams(), 12_345)))
    assert grammar_bytes_of(SimpleNamespace(extra_args=extra_args)) == 12_345
    assert read_back(extra_args) == SpecDecodeParams()
    for unknown in (None, SimpleNamespace(extra_args=None)):
        assert grammar_bytes_of(unknown) is None
    assert grammar_bytes_of(SimpleNamespace(extra_args=to_extra_args(SpecDecodeParams()))) is None
