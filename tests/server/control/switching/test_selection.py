"""The proposer that a request or a switch gets, for every spelling of docs/api.md."""

from dataclasses import replace
from typing import Any

import pytest

from engine_adapter.seam.types import PLAIN, ProposerInfo, SpecMethod
from server.control.method_names import LoadedProposers, MethodRequest, SelectionError
from server.control.switching.selection import ActiveMethod, RoutedMethod, resolve, select

LOADED = LoadedProposers(
    (
        ProposerInfo("ngram", "ngram", None, 5),
        ProposerInfo("long", "ngram", None, 8),
        ProposerInfo("trees", "suffix", None, 6),
        ProposerInfo("draft", "draft_model", "/models/draft", 4),
        ProposerInfo("twin-a", "draft_model", "org/twin", 3),
        ProposerInfo("twin-b", "draft_model", "org/twin", 2),
    ),
    primary="draft",
    backup="ngram",
    max_speculative_tokens=8,
)
ACTIVE = ActiveMethod(SpecMethod("draft", 4), "draft", 7, 0.0)


def named(proposer: str | None, k: int | None = None) -> MethodRequest:
    return MethodRequest(proposer, k, is_named=True)


@pytest.mark.parametrize(
    ("proposer", "expected"),
    [
        ("ngram", SpecMethod("ngram", 5)),
        ("[ngram]", SpecMethod("ngram", 5)),  # the name comes before the method
        ("[suffix]", SpecMethod("trees", 6)),
        ("[trees]", SpecMethod("trees", 6)),
        ("/models/draft", SpecMethod("draft", 4)),
        ("/models/draft/", SpecMethod("draft", 4)),
        ("/models/../models/draft", SpecMethod("draft", 4)),
        ("primary", SpecMethod("draft", 4)),
        ("backup", SpecMethod("ngram", 5)),
        ("goodput", SpecMethod("auto", 8)),
        ("load", SpecMethod("load", 8)),
        ("per_request", SpecMethod("per_request", 8)),
        ("none", PLAIN),
        ("None", PLAIN),
        ("disable", PLAIN),
        (None, PLAIN),
    ],
)
def test_a_spelling_names_its_method(proposer: str | None, expected: SpecMethod) -> None:
    assert resolve(named(proposer), LOADED) == expected


@pytest.mark.parametrize(
    ("proposer", "code"),
    [
        ("org/twin", "proposer_ambiguous"),
        ("[draft_model]", "proposer_ambiguous"),
        ("", "proposer_not_found"),
        ("[]", "proposer_not_found"),
        ("[eagle]", "proposer_not_found"),
        ("nope", "proposer_not_found"),
        ("NGRAM", "proposer_not_found"),
        ("AUTO", "proposer_not_found"),
        ("[auto]", "proposer_not_found"),
    ],
)
def test_an_ambiguous_or_unknown_name_is_refused(proposer: str, code: str) -> None:
    with pytest.raises(SelectionError) as caught:
        resolve(named(proposer), LOADED)
    assert caught.value.code == code
    assert caught.value.param == "spec_decode.proposer"


def test_the_message_for_an_unknown_name_lists_the_loaded_ones() -> None:
    with pytest.raises(SelectionError) as caught:
        resolve(named("nope"), LOADED)
    for name in (*LOADED.names, "none", "auto", "auto", "load"):
        assert name in caught.value.message


def test_an_ambiguous_name_lists_the_proposers_that_share_it() -> None:
    with pytest.raises(SelectionError, match="twin-a, twin-b"):
        resolve(named("org/twin"), LOADED)


def test_a_long_unknown_name_is_not_repeated_in_full() -> None:
    with pytest.raises(SelectionError) as caught:
        resolve(named("x" * 5000), LOADED)
    assert "x" * 101 not in caught.value.message


@pytest.mark.parametrize("role", ["primary", "backup"])
def test_a_role_without_a_proposer_is_refused(role: str) -> None:
    with pytest.raises(SelectionError, match=f"no {role} proposer") as caught:
        resolve(named(role), LoadedProposers(LOADED.proposers))
    assert caught.value.code == "proposer_not_found"


@pytest.mark.parametrize(("k", "expected"), [(1, 1), (4, 4)])
def test_k_up_to_the_proposers_own_is_accepted(k: int, expected: int) -> None:
    assert resolve(named("draft", k), LOADED) == SpecMethod("draft", expected)


@pytest.mark.parametrize("k", [5, 100, -1])
def test_k_outside_the_proposers_range_is_refused(k: int) -> None:
    with pytest.raises(SelectionError) as caught:
        resolve(named("draft", k), LOADED)
    assert caught.value.param == "spec_decode.num_speculative_tokens"


@pytest.mark.parametrize("name", ["draft", "auto"])
def test_k_of_zero_is_plain_decoding(name: str) -> None:
    assert resolve(named(name, 0), LOADED) == PLAIN


def test_k_caps_a_policy_up_to_the_largest_k_of_the_proposers() -> None:
    assert resolve(named("auto", 3), LOADED) == SpecMethod("auto", 3)
    assert resolve(named("auto", 8), LOADED) == SpecMethod("auto", 8)
    with pytest.raises(SelectionError, match="the largest k of the loaded") as caught:
        resolve(named("auto", 9), LOADED)
    assert caught.value.code == "num_speculative_tokens_too_large"


def test_a_policy_without_proposers_may_use_those_that_are_loaded_later() -> None:
    nothing = LoadedProposers((), max_speculative_tokens=5)
    assert resolve(named("auto"), nothing) == SpecMethod("auto", 5)


def test_a_prediction_is_drafted_under_a_policy_and_refused_for_another_proposer() -> None:
    loaded = LoadedProposers((*LOADED.proposers, ProposerInfo("p", "prediction", None, 6)))
    for request in (MethodRequest(has_prediction=True), named("auto"), named("load", 2)):
        selection = select(replace(request, has_prediction=True), ACTIVE, loaded)
        assert selection.name == "p"
        assert selection.k == (request.num_speculative_tokens or 6)
    with pytest.raises(SelectionError) as caught:
        select(replace(named("ngram"), has_prediction=True), ACTIVE, loaded)
    assert caught.value.param == "prediction"


ROUTED = RoutedMethod(SpecMethod("ngram", 5), "rule-1")


def test_a_rule_is_stronger_than_the_active_method_and_pins() -> None:
    selection = select(MethodRequest(), ACTIVE, LOADED, ROUTED)
    assert selection.params.spec_method == SpecMethod("ngram", 5)
    assert selection.params.pinned
    assert (selection.selected_by, selection.rule) == ("rule", "rule-1")


def test_the_requests_own_proposer_is_stronger_than_a_rule() -> None:
    selection = select(named("draft"), ACTIVE, LOADED, ROUTED)
    assert (selection.name, selection.selected_by, selection.rule) == ("draft", "request", None)


def test_k_without_a_proposer_caps_the_method_of_a_rule() -> None:
    selection = select(MethodRequest(None, 2), ACTIVE, LOADED, ROUTED)
    assert selection.params.spec_method == SpecMethod("ngram", 2)
    assert (selection.selected_by, selection.rule) == ("request", "rule-1")


def test_k_without_a_proposer_caps_an_active_policy() -> None:
    active = ActiveMethod(SpecMethod("auto", 8), "auto", 8, 0.0)
    selection = select(MethodRequest(None, 2), active, LOADED)
    assert selection.params.spec_method == SpecMethod("auto", 2)


def test_errors_name_the_fields_that_the_client_wrote() -> None:
    flat: dict[str, Any] = {
        "proposer_param": "speculative_model",
        "k_param": "num_speculative_tokens",
    }
    with pytest.raises(SelectionError) as name:
        resolve(MethodRequest("nope", None, True, **flat), LOADED)
    with pytest.raises(SelectionError) as k:
        resolve(MethodRequest("draft", 9, True, **flat), LOADED)
    assert (name.value.param, k.value.param) == ("speculative_model", "num_speculative_tokens")


def test_a_request_without_fields_gets_the_active_method() -> None:
    selection = select(MethodRequest(), ACTIVE, LOADED)
    assert selection.params.spec_method == SpecMethod("draft", 4)
    assert not selection.params.pinned
    assert selection.params.switch_epoch == 7
    assert (selection.name, selection.selected_by) == ("draft", "active")


def test_a_request_that_names_its_proposer_is_pinned() -> None:
    selection = select(named("ngram", 2), ACTIVE, LOADED)
    assert selection.params.spec_method == SpecMethod("ngram", 2)
    assert selection.params.pinned
    assert (selection.name, selection.selected_by) == ("ngram", "request")


def test_a_request_that_names_null_is_pinned_to_none() -> None:
    selection = select(named(None), ACTIVE, LOADED)
    assert (selection.params.spec_method, selection.params.pinned, selection.name) == (
        PLAIN,
        True,
        "none",
    )


@pytest.mark.parametrize(("k", "expected"), [(2, 2), (4, 4), (8, 4)])
def test_k_without_a_proposer_caps_the_active_one(k: int, expected: int) -> None:
    selection = select(MethodRequest(None, k), ACTIVE, LOADED)
    assert selection.params.spec_method == SpecMethod("draft", expected)
    assert selection.params.pinned  # a later switch must not lift the cap


def test_k_of_zero_without_a_proposer_is_plain_decoding() -> None:
    assert select(MethodRequest(None, 0), ACTIVE, LOADED).params.spec_method == PLAIN


def test_the_limit_of_k_does_not_depend_on_the_active_method() -> None:
    plain = ActiveMethod(PLAIN, "none", 8, 0.0)
    assert select(MethodRequest(None, 8), plain, LOADED).params.spec_method == PLAIN
    for active in (ACTIVE, plain):
        with pytest.raises(SelectionError):
            select(MethodRequest(None, 9), active, LOADED)
