"""From a proposer's JSON to its spec: every error has the field at fault."""

from dataclasses import fields as fields_of
from typing import Any

import pytest

from engine_adapter.proposers.contract import RESERVED_NAMES, Capabilities, ProposerSpec
from engine_adapter.proposers.methods import METHODS, get_method, needs, parse_spec, parse_specs
from engine_adapter.seam.errors import EngineConfigError

NGRAM = {"name": "lookup", "method": "ngram"}
SUFFIX = {"name": "tree", "method": "suffix"}
DRAFT = {"name": "small", "method": "draft_model", "model": "a/b"}


def refusal(fields: dict[str, Any]) -> str:
    """The message of the error for these fields."""
    with pytest.raises(EngineConfigError) as caught:
        parse_spec(fields)
    assert caught.value.setting == "proposer"
    assert str(caught.value).startswith("proposer: ")
    return str(caught.value)


@pytest.mark.parametrize(
    "name",
    [None, "", 5, ["x"], "-x", ".x", "_x", "a b", "a/b", "a\n", "é", "x" * 65],
)
def test_a_bad_name_is_refused(name: Any) -> None:
    assert "name" in refusal({**NGRAM, "name": name})


def test_a_missing_name_is_refused() -> None:
    assert "name" in refusal({"method": "ngram"})


@pytest.mark.parametrize("name", ["a", "A1", "7b", "x" * 64, "qwen-0.5b_v2"])
def test_a_name_of_letters_digits_and_marks_is_accepted(name: str) -> None:
    assert parse_spec({**NGRAM, "name": name}).name == name


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
@pytest.mark.parametrize("spelling", [str.lower, str.upper, str.title])
def test_a_reserved_name_is_refused_in_any_case(name: str, spelling: Any) -> None:
    message = refusal({**NGRAM, "name": spelling(name)})
    assert "name" in message
    assert "reserved" in message


@pytest.mark.parametrize("bad", ["eagle9", "", None, 3, "NGRAM", ["ngram"], {}])
def test_an_unknown_method_is_refused_with_the_known_ones(bad: Any) -> None:
    message = refusal({"name": "x", "method": bad})
    assert "method" in message
    assert all(known.name in message for known in METHODS)


def test_method_is_required_unless_the_name_is_a_method() -> None:
    assert "method" in refusal({"name": "mine"})


@pytest.mark.parametrize("k", [0, -1, 2.0, "3", None, True, [4]])
def test_k_must_be_a_positive_integer(k: Any) -> None:
    assert "num_speculative_tokens" in refusal({**NGRAM, "num_speculative_tokens": k})


@pytest.mark.parametrize("model", [None, "", 5, ["a"]])
def test_model_is_required_for_a_method_with_weights(model: Any) -> None:
    assert "model" in refusal({**DRAFT, "model": model})


@pytest.mark.parametrize("fields", [NGRAM, SUFFIX])
def test_model_is_refused_for_a_method_without_weights(fields: dict[str, Any]) -> None:
    message = refusal({**fields, "model": "a/b"})
    assert "model" in message
    assert fields["method"] in message


@pytest.mark.parametrize(
    ("fields", "option"),
    [(NGRAM, "suffix_decoding_max_tree_depth"), (SUFFIX, "prompt_lookup_min"), (DRAFT, "temp")],
)
def test_an_unknown_option_is_refused_with_the_known_ones(
    fields: dict[str, Any], option: str
) -> None:
    message = refusal({**fields, option: 1})
    assert option in message
    assert all(known in message for known in get_method(fields["method"]).options)


@pytest.mark.parametrize("option", ["prompt_lookup_min", "prompt_lookup_max"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "3", None, True])
def test_a_bad_ngram_length_is_refused(option: str, value: Any) -> None:
    assert option in refusal({**NGRAM, option: value})


def test_an_ngram_minimum_above_the_maximum_is_refused() -> None:
    message = refusal({**NGRAM, "prompt_lookup_min": 4, "prompt_lookup_max": 3})
    assert "prompt_lookup_min (4)" in message
    assert "prompt_lookup_max (3)" in message


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("suffix_decoding_max_tree_depth", bad) for bad in (0, -1, 2.5, "3", None, True)],
        *[("suffix_decoding_max_cached_requests", bad) for bad in (-1, 2**31, 1.5, None, True)],
        *[("suffix_decoding_max_spec_factor", bad) for bad in (-0.1, "1", None, True)],
        *[("suffix_decoding_min_token_prob", bad) for bad in (-0.1, 1.1, "0", None, True)],
        ("suffix_decoding_max_spec_factor", float("nan")),
        ("suffix_decoding_min_token_prob", float("nan")),
    ],
)
def test_a_bad_suffix_option_is_refused(option: str, value: Any) -> None:
    assert option in refusal({**SUFFIX, option: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("suffix_decoding_max_tree_depth", 1),
        ("suffix_decoding_max_cached_requests", 0),
        ("suffix_decoding_max_spec_factor", 2),
        ("suffix_decoding_min_token_prob", 1),
    ],
)
def test_a_suffix_option_at_its_limit_is_accepted(option: str, value: Any) -> None:
    assert parse_spec({**SUFFIX, option: value}).options[option] == value


SIMPLE = [known for known in METHODS if not known.capabilities.members]


@pytest.mark.parametrize("known", SIMPLE, ids=lambda known: known.name)
def test_default_k_and_options_are_those_of_the_method(known: Any) -> None:
    model = {"model": "a/b"} if known.capabilities.model else {}
    spec = parse_spec({"name": "x", "method": known.name, **model})
    assert spec == ProposerSpec(
        "x", known.name, known.default_k, model.get("model"), dict(known.options)
    )


@pytest.mark.parametrize("known", SIMPLE, ids=lambda known: known.name)
def test_the_name_of_a_method_implies_the_method(known: Any) -> None:
    model = {"model": "a/b"} if known.capabilities.model else {}
    assert parse_spec({"name": known.name, **model}).method == known.name


def test_a_given_option_changes_no_other_option_and_no_default() -> None:
    spec = parse_spec({**NGRAM, "prompt_lookup_max": 9, "num_speculative_tokens": 3})
    assert spec.options == {"prompt_lookup_min": 2, "prompt_lookup_max": 9}
    assert spec.num_speculative_tokens == 3
    assert get_method("ngram").options["prompt_lookup_max"] == 5


def test_methods_are_found_by_their_unique_names() -> None:
    assert len({known.name for known in METHODS}) == len(METHODS)
    assert all(get_method(known.name) is known for known in METHODS)
    with pytest.raises(KeyError):
        get_method("nothing")


def test_several_proposers_of_one_method_keep_their_order() -> None:
    specs = parse_specs([DRAFT, NGRAM, {**DRAFT, "name": "smaller"}])
    assert [spec.name for spec in specs] == ["small", "lookup", "smaller"]


CASCADE = {"name": "both", "method": "cascade", "members": ["tree", "small"]}


def test_a_cascade_may_precede_its_members() -> None:
    cascade, *_ = parse_specs([CASCADE, SUFFIX, DRAFT])
    assert cascade.options == {"members": ["tree", "small"]}


@pytest.mark.parametrize(("given", "k"), [({}, 8), ({"num_speculative_tokens": 3}, 3)])
def test_the_default_k_of_a_cascade_is_its_members_largest(given: dict[str, int], k: int) -> None:
    *_, cascade = parse_specs([SUFFIX, DRAFT, NGRAM, CASCADE | given])
    assert cascade.num_speculative_tokens == k


@pytest.mark.parametrize(
    "members",
    [
        *[None, "tree", 5, {}, [], ["tree"], ["tree", "tree"], ["tree", 5], [["tree"], "small"]],
        *[["tree", "gone"], ["tree", "both"], ["tree", "other"]],
    ],
)
def test_invalid_members_are_refused(members: Any) -> None:
    other = CASCADE | {"name": "other"}
    with pytest.raises(EngineConfigError, match="members") as caught:
        parse_specs([SUFFIX, DRAFT, other, CASCADE | {"members": members}])
    assert caught.value.field == "members"


def test_a_cascade_without_members_is_refused() -> None:
    assert "members" in refusal({"name": "cascade"})


CHAIN = {"name": "chain", "members": ["small", "tree"]}


@pytest.mark.parametrize(("fields", "k"), [({}, 12), ({"num_speculative_tokens": 3}, 3)])
def test_the_default_k_of_a_chain_is_the_sum_of_its_members(fields: dict[str, int], k: int) -> None:
    *_, chain = parse_specs([SUFFIX, DRAFT, NGRAM, CHAIN | fields])
    assert chain.num_speculative_tokens == k


def test_a_lookup_may_be_a_member_of_a_chain_twice() -> None:
    *_, chain = parse_specs([SUFFIX, DRAFT, CHAIN | {"members": ["tree", "small", "tree"]}])
    assert chain.num_speculative_tokens == 8 + 4 + 8


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        (["tree"], "at least two different proposers"),
        (["tree", "tree"], "at least two different proposers"),
        (["small", "tree", "tree"], "only a lookup twice, with another between"),
        (["small", "tree", "small"], "only a lookup twice, with another between"),
        (["tree", "small"], "must have a lookup after the first one"),
        (["tree", "gone"], "not a proposer that can be a member"),
        (["tree", "lookup"] * 9, "at most 16 proposers, got 18"),
        (["tree", "lookup"] * 1_000_000, "at most 16 proposers, got 2000000"),
    ],
)
def test_members_that_cannot_be_a_chain_are_refused(members: list[str], reason: str) -> None:
    with pytest.raises(EngineConfigError, match=reason) as caught:
        parse_specs([SUFFIX, DRAFT, NGRAM, CHAIN | {"members": members}])
    assert caught.value.field == "members"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "x", "method": "nothing"}, "method"),
        (NGRAM | {"num_speculative_tokens": 0}, "num_speculative_tokens"),
        (DRAFT | {"model": None}, "model"),
        (NGRAM | {"unknown": 1}, "unknown"),
        (NGRAM | {"prompt_lookup_min": 0}, "prompt_lookup_min"),
        (NGRAM | {"prompt_lookup_min": 4, "prompt_lookup_max": 3}, "prompt_lookup_min"),
        (SUFFIX | {"suffix_decoding_min_token_prob": 2}, "suffix_decoding_min_token_prob"),
        ({"name": "prediction", "prediction_lookup_max": 0}, "prediction_lookup_max"),
        ({"name": "prediction", "prediction_lookup_min": 9}, "prediction_lookup_min"),
        (DRAFT | {"draft_sampling": "warm"}, "draft_sampling"),
        (DRAFT | {"verification": "block"}, "verification"),
        (DRAFT | {"draft_tensor_parallel_size": 0}, "draft_tensor_parallel_size"),
    ],
)
def test_an_error_has_the_field_at_fault(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(EngineConfigError) as caught:
        parse_spec(fields)
    assert caught.value.field == field


@pytest.mark.parametrize("name", [known.name for known in fields_of(Capabilities)])
def test_the_union_of_capabilities_has_every_one_of_either(name: str) -> None:
    none, one = Capabilities(), Capabilities(**{name: True})
    assert none | none == none
    assert none | one == one | none == one | one == one


def test_a_cascade_has_the_capabilities_of_its_members() -> None:
    specs = parse_specs(
        [SUFFIX, NGRAM, DRAFT, CASCADE, CASCADE | {"name": "b", "members": ["tree", "lookup"]}]
    )
    assert (
        needs(specs[3], specs)
        == Capabilities(members=True, continues=True) | get_method("draft_model").capabilities
    )
    assert needs(specs[4], specs) == Capabilities(members=True, continues=True)
    assert needs(specs[2], specs) == get_method("draft_model").capabilities


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(EngineConfigError, match=r"proposer: name: 'small' is given twice"):
        parse_specs([DRAFT, NGRAM, DRAFT])
