"""Proposers in the short spellings of users, and in vLLM's own."""

import json
from typing import Any

import pytest

from demo import model_path
from engine_adapter.proposers.contract import ProposerSpec
from server.settings.sources import load_settings
from server.settings.types import SettingsError

EAGLE3 = str(model_path("eagle3"))


def proposers(*words: str, **environ: str) -> list[tuple[str, str, str | None, int]]:
    return [described(spec) for spec in load_settings(["org/m", *words], environ).proposer]


def described(spec: ProposerSpec) -> tuple[str, str, str | None, int]:
    return spec.name, spec.method, spec.model, spec.num_speculative_tokens


def refusal(*words: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(["org/m", *words], {})
    return str(caught.value)


def test_a_method_alone_is_a_proposer() -> None:
    ((name, method, model, _),) = proposers("--proposer", "ngram")
    assert (name, method, model) == ("ngram", "ngram", None)
    assert [each[0] for each in proposers("--proposer", "ngram", "--proposer", "suffix")] == [
        "ngram",
        "suffix",
    ]
    assert [each[0] for each in proposers(SPECGATE_PROPOSER="ngram")] == ["ngram"]


def test_the_name_defaults_to_the_method() -> None:
    words = '{"method": "suffix", "num_speculative_tokens": 7}'
    assert proposers("--proposer", words) == [("suffix", "suffix", None, 7)]


def test_the_method_defaults_to_that_of_the_checkpoint() -> None:
    (unnamed,) = proposers("--proposer", json.dumps({"model": EAGLE3}))
    assert unnamed[:3] == ("eagle3", "eagle3", EAGLE3)
    (named,) = proposers("--proposer", json.dumps({"name": "head", "model": EAGLE3}))
    assert named[:3] == ("head", "eagle3", EAGLE3)
    draft = str(model_path("draft"))
    (chosen,) = proposers("--proposer", json.dumps({"name": "draft_model", "model": draft}))
    assert chosen[:3] == ("draft_model", "draft_model", draft)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nonsense", "method: 'nonsense' is unknown; there are ngram"),
        ("{}", "name: is required"),
        ('{"model": "/nowhere/at/all"}', "model: "),
        ('{"num_speculative_tokens": 3}', "name: is required"),
    ],
)
def test_a_proposer_without_a_method_is_refused(value: str, reason: str) -> None:
    assert f"--proposer: {reason}" in refusal("--proposer", value)


def config(**fields: Any) -> tuple[str, str]:
    return "--speculative-config", json.dumps(fields)


def test_vllms_speculative_config_is_a_proposer() -> None:
    ngram = config(method="ngram", num_speculative_tokens=4, prompt_lookup_max=4)
    assert proposers(*ngram) == [("ngram", "ngram", None, 4)]
    assert proposers(*ngram, "--proposer", "suffix")[0][0] == "suffix", "it is one more"
    assert proposers(*config(model=EAGLE3, num_speculative_tokens=3, method=None)) == [
        ("eagle3", "eagle3", EAGLE3, 3)
    ]
    (settings,) = (load_settings(["org/m", *ngram], {}),)
    assert settings.initial_proposer == "auto"
    assert load_settings(["org/m", *ngram, "--spec-method", "ngram"], {}).spec_method == "ngram"


def test_vllms_older_spellings_of_a_method_are_read() -> None:
    for fields in ({"model": "[ngram]"}, {"method": "ngram_gpu"}):
        ((name, method, model, _),) = proposers(*config(**fields, num_speculative_tokens=3))
        assert (name, method, model) == ("ngram", "ngram", None)
    ((name, method, _, _),) = proposers(*config(method="deepseek_mtp", num_speculative_tokens=1))
    assert (name, method) == ("mtp", "mtp")


def test_vllms_three_flags_are_a_proposer() -> None:
    words = ("--spec-model", EAGLE3, "--spec-tokens", "3")
    assert proposers(*words) == [("eagle3", "eagle3", EAGLE3, 3)]
    settings = load_settings(["org/m", *words, "--spec-method", "eagle3"], {})
    assert settings.initial_proposer == "eagle3"
    words = ("--spec-method", "ngram", "--spec-tokens", "3")
    assert proposers(*words) == [("ngram", "ngram", None, 3)]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (config(method="ngram", quantization="fp8"), "quantization: ngram has no such field"),
        (config(method="medusa"), "model: medusa needs the path or id of its weights"),
        (config(method="custom_class"), "method: 'custom_class' is unknown"),
        (config(model="/nowhere/at/all"), "the folder /nowhere/at/all does not exist"),
        ((*config(method="ngram"), "--spec-tokens", "3"), "leave out spec_model and spec_tokens"),
    ],
)
def test_an_error_names_vllms_setting(words: tuple[str, ...], reason: str) -> None:
    message = refusal(*words)
    assert message.startswith("--speculative-config: ")
    assert reason in message


def test_tokens_without_a_method_are_refused() -> None:
    assert refusal("--spec-tokens", "3").startswith("--spec-tokens: ")
    assert "got 'x'" in refusal("--spec-model", EAGLE3, "--spec-tokens", "x")
