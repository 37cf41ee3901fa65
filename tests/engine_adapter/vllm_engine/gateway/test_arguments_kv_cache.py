"""What vLLM's defaults for the KV cache become where they cannot work."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway.arguments import engine_config


class Arguments:
    """vLLM's arguments for a target; its prefix cache is on unless it is set."""

    def __init__(
        self,
        *,
        recurrent: bool = False,
        caching: bool | None = None,
        kinds: Sequence[str] | None = None,
        one_group: bool | None = None,
    ) -> None:
        text = SimpleNamespace(layer_types=kinds)
        self._model = SimpleNamespace(is_hybrid=recurrent, hf_text_config=text)
        self.enable_prefix_caching = caching
        self.disable_hybrid_kv_cache_manager = one_group

    def create_engine_config(self) -> Any:
        if self.enable_prefix_caching is None:  # vLLM fills in its defaults
            self.enable_prefix_caching = True
        cache = SimpleNamespace(enable_prefix_caching=self.enable_prefix_caching)
        one_group = self.disable_hybrid_kv_cache_manager
        return SimpleNamespace(
            model_config=self._model,
            scheduler_config=SimpleNamespace(enable_chunked_prefill=True),
            cache_config=cache,
            one_group=one_group,
            reasoning_config=None,
        )


@pytest.fixture(params=[True, False], ids=["cpu", "gpu"])
def on_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    on_cpu: bool = request.param
    monkeypatch.setitem(
        vars(compat), "current_platform", SimpleNamespace(is_cpu=lambda: request.param)
    )
    return on_cpu


@pytest.mark.parametrize("recurrent", [True, False])
def test_the_prefix_cache_is_off_for_recurrent_layers_on_a_cpu(
    on_cpu: bool, recurrent: bool
) -> None:
    made = engine_config(Arguments(recurrent=recurrent, caching=None))
    assert made.cache_config.enable_prefix_caching == (not (on_cpu and recurrent))


@pytest.mark.parametrize("on_cpu", [True], indirect=True)
def test_a_prefix_cache_that_vllm_cannot_fill_is_refused(on_cpu: bool) -> None:
    with pytest.raises(EngineConfigError) as caught:
        engine_config(Arguments(recurrent=True, caching=True))
    assert caught.value.setting == "enable_prefix_caching"


def test_a_prefix_cache_that_is_set_off_stays_off(on_cpu: bool) -> None:
    made = engine_config(Arguments(recurrent=True, caching=False))
    assert made.cache_config.enable_prefix_caching is False


CHUNKS = ["chunked_attention", "full_attention"]


@pytest.mark.parametrize("asked", [None, True])
def test_a_target_with_chunks_has_one_group(on_cpu: bool, asked: bool | None) -> None:
    assert engine_config(Arguments(kinds=CHUNKS, one_group=asked)).one_group is True


def test_another_target_has_the_groups_that_it_asks_for(on_cpu: bool) -> None:
    for asked in (None, True, False):
        assert engine_config(Arguments(kinds=CHUNKS[1:], one_group=asked)).one_group is asked


def test_several_groups_of_a_target_with_chunks_are_refused(on_cpu: bool) -> None:
    with pytest.raises(EngineConfigError) as caught:
        engine_config(Arguments(kinds=CHUNKS, one_group=False))
    assert caught.value.setting == "disable_hybrid_kv_cache_manager"
