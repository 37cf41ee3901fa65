"""The flags of vLLM's engine arguments beside those of a server."""

import argparse

import pytest

from engine_adapter.vllm_engine.gateway.flags import add_engine_flags, argument_names, spelled_out

pytestmark = pytest.mark.needs_vllm


def parser() -> argparse.ArgumentParser:
    joint = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, exit_on_error=False)
    joint.add_argument("model", nargs="?")
    joint.add_argument("--tensor-parallel-size")
    add_engine_flags(joint, {"model", "tensor_parallel_size", "seed"})
    return joint


def test_only_flags_that_are_written_have_a_value() -> None:
    assert vars(parser().parse_args([])) == {}
    assert vars(parser().parse_args(["--max-logprobs", "5", "m"])) == {
        "max_logprobs": 5,
        "model": "m",
    }


def test_a_setting_of_the_server_keeps_its_text_and_gets_vllms_spellings() -> None:
    assert vars(parser().parse_args(["-tp", "2"])) == {"tensor_parallel_size": "2"}


@pytest.mark.parametrize("flag", ["--seed", "--worker-cls", "--speculative-config"])
def test_settings_and_reserved_arguments_have_no_flag(flag: str) -> None:
    _, unknown_words = parser().parse_known_args([f"{flag}=1"])
    assert unknown_words == [f"{flag}=1"]


def test_an_object_stays_json() -> None:
    words = ["--structured-outputs-config", '{"disable_any_whitespace": true}']
    (value,) = vars(parser().parse_args(words)).values()
    assert value == {"disable_any_whitespace": True}


def test_the_file_of_settings_is_not_read_by_vllm() -> None:
    words = ["--config", "/nowhere.yaml", "--config=/nowhere.yaml", "serve"]
    assert spelled_out(words) == words


def test_arguments_have_the_names_of_vllms_fields() -> None:
    assert {"hf_overrides", "tensor_parallel_size", "worker_cls"} <= argument_names()
