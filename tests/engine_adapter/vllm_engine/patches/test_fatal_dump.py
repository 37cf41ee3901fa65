"""The dump of a step that fails tells its sizes and nothing of its requests."""

import logging
from importlib.util import find_spec, module_from_spec
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.fatal_dump import patch_fatal_dump

pytestmark = pytest.mark.needs_vllm

SECRETS = ("a stop string", "a bad word", "98765", "43210")


def step() -> Any:
    """A `SchedulerOutput` with one request that carries a text of each kind."""
    from vllm import SamplingParams
    from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

    params = SamplingParams(
        stop=["a stop string"], bad_words=["a bad word"], extra_args={"prediction": [98765]}
    )
    new = NewRequestData(
        req_id="r",
        prompt_token_ids=[43210],
        mm_features=[],
        sampling_params=params,
        pooling_params=None,
        block_ids=([1],),
        num_computed_tokens=0,
        lora_request=None,
    )
    output = SchedulerOutput.make_empty()
    output.scheduled_new_reqs = [new]
    output.scheduled_cached_reqs = CachedRequestData.make_empty()
    output.total_num_scheduled_tokens = 5
    output.scheduled_spec_decode_tokens = {"r": [98765, 43210]}
    return output


def vllms_own() -> Any:
    """vLLM's function, of a second copy of its module: the first may be patched already."""
    spec = find_spec(compat.dump_input.__name__)
    assert spec is not None
    assert spec.loader is not None
    copy = module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy.prepare_object_to_dump


def dumped(caplog: pytest.LogCaptureFixture) -> str:
    """What vLLM logs of the step."""
    logger = logging.getLogger(compat.dump_input.__name__)
    logger.addHandler(caplog.handler)
    try:
        compat.dump_input.dump_engine_exception(SimpleNamespace(), step(), None)
    finally:
        logger.removeHandler(caplog.handler)
    return caplog.text


def test_the_dump_has_sizes_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat.dump_input, "prepare_object_to_dump", vllms_own())
    before = dumped(caplog)
    assert "a stop string" in before, "vLLM's own dump has it; if not, the patch can go"
    caplog.clear()
    patch_fatal_dump()
    patch_fatal_dump()
    text = dumped(caplog)
    assert "1 new requests, 0 running ones, 5 tokens, 2 of them drafts" in text
    assert [secret for secret in SECRETS if secret in text] == []
