"""Which proposer a request or a switch gets, by every spelling of docs/api.md."""

from typing import Any

import pytest

from engine_adapter.types import PLAIN, ProposerInfo, SpecMethod
from server.control.selection import (
    ActiveMethod,
    LoadedProposers,
    MethodRequest,
    SelectionError,
    resolve,
    select,
)

CATALOG = LoadedProposers(
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
        ("none", PLAIN),
        ("None", PLAIN),
        ("disable", PLAIN),
        (None, PLAIN),
    ],
)
def test_a_spelling_names_its_method(proposer: str | None, expected: SpecMethod) -> None:
    assert resolve(named(proposer), CATALOG) == expected


@pytest.mark.parametrize(
    ("proposer", "code"),
    [
        ("org/twin", "proposer_ambiguous"),
        ("[draft_model]", "proposer_ambiguous"),
        ("", "proposer_not_found"),
        ("[]", "proposer_not_found"),
        ("[eagle]", "proposer_not_found"),
        ("nobody", "proposer_not_found"),
        ("NGRAM", "proposer_not_found"),
        ("auto", "proposer_not_found"),
    ],
)
def test_a_name_that_means_no_one_proposer_is_refused(proposer: str, code: str) -> None:
    with pytest.raises(SelectionError) as caught:
        resolve(named(proposer), CATALOG)
    assert caught.value.code == code
    assert caught.value.param == "spec_decode.proposer"


def test_the_message_for_an_unknown_name_lists_those_that_exist() -> None:
    with pytest.raises(SelectionError) as caught:
        resolve(named("nobody"), CATALOG)
    for name in (*CATALOG.names, "none"):
        assert name in caught.value.message


def test_an_ambiguous_name_lists_the_proposers_that_share_it() -> None:
    with pytest.raises(SelectionError, match="twin-a, twin-b"):
        resolve(named("org/twin"), CATALOG)


def test_a_long_unknown_name_is_not_repeated_in_full() -> None:
    with pytest.raises(SelectionError) as caught:
        resolve(named("x" * 5000), CATALOG)
    assert "x" * 101 not in caught.value.message


@pytest.mark.parametrize("role", ["primary", "backup"])
def test_a_role_that_nobody_has_is_refused(role: str) -> None:
    with pytest.raises(SelectionError, match=f"no {role} proposer") as caught:
        resolve(named(role), LoadedProposers(CATALOG.proposers))
    assert caught.value.code == "proposer_not_found"


@pytest.mark.parametrize(("k", "expected"), [(1, 1), (4, 4)])
def test_k_up_to_the_proposers_own_is_taken(k: int, expected: int) -> None:
    assert resolve(named("draft", k), CATALOG) == SpecMethod("draft", expected)


@pytest.mark.parametrize("k", [5, 100, -1])
def test_k_outside_the_proposers_range_is_refused(k: int) -> None:
    with pytest.raises(SelectionError) as caught:
        resolve(named("draft", k), CATALOG)
    assert caught.value.param == "spec_decode.num_speculative_tokens"


def test_k_of_zero_is_plain_decoding() -> None:
    assert resolve(named("draft", 0), CATALOG) == PLAIN


def test_errors_bear_the_names_that_the_client_wrote() -> None:
    flat: dict[str, Any] = {
        "proposer_param": "speculative_model",
        "k_param": "num_speculative_tokens",
    }
    with pytest.raises(SelectionError) as name:
        resolve(MethodRequest("nobody", None, True, **flat), CATALOG)
    with pytest.raises(SelectionError) as k:
        resolve(MethodRequest("draft", 9, True, **flat), CATALOG)
    assert (name.value.param, k.value.param) == ("speculative_model", "num_speculative_tokens")


def test_a_request_that_asks_for_nothing_follows_the_active_method() -> None:
    choice = select(MethodRequest(), ACTIVE, CATALOG)
    assert choice.params.spec_method == SpecMethod("draft", 4)
    assert not choice.params.pinned
    assert choice.params.switch_epoch == 7
    assert (choice.name, choice.selected_by) == ("draft", "active")


def test_a_request_that_names_its_proposer_is_pinned() -> None:
    choice = select(named("ngram", 2), ACTIVE, CATALOG)
    assert choice.params.spec_method == SpecMethod("ngram", 2)
    assert choice.params.pinned
    assert (choice.name, choice.selected_by) == ("ngram", "request")


def test_a_request_that_wants_no_speculation_is_pinned_to_none() -> None:
    choice = select(named(None), ACTIVE, CATALOG)
    assert (choice.params.spec_method, choice.params.pinned, choice.name) == (PLAIN, True, "none")


@pytest.mark.parametrize(("k", "expected"), [(2, 2), (4, 4), (8, 4)])
def test_k_without_a_proposer_caps_the_active_one(k: int, expected: int) -> None:
    choice = select(MethodRequest(None, k), ACTIVE, CATALOG)
    assert choice.params.spec_method == SpecMethod("draft", expected)
    assert choice.params.pinned  # a later switch must not lift the cap


def test_k_of_zero_without_a_proposer_is_plain_decoding() -> None:
    assert select(MethodRequest(None, 0), ACTIVE, CATALOG).params.spec_method == PLAIN


def test_k_without_a_proposer_is_judged_alike_whatever_is_active() -> None:
    plain = ActiveMethod(PLAIN, "none", 8, 0.0)
    assert select(MethodRequest(None, 8), plain, CATALOG).params.spec_method == PLAIN
    for active in (ACTIVE, plain):
        with pytest.raises(SelectionError):
            select(MethodRequest(None, 9), active, CATALOG)
