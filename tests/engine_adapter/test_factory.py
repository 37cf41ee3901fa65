"""Engines by name, and what is imported when one is made."""

import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from engine_adapter.config import EngineConfig
from engine_adapter.errors import EngineNotReady
from engine_adapter.factory import ENGINES, create_engine

ROOT = Path(__file__).parents[2]


class Silent:
    """An observer that looks away."""

    def on_step(self, report: object) -> None:
        """Nothing."""

    def on_restart(self, succeeded: bool) -> None:
        """Nothing."""


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_is_made_without_being_started(name: str) -> None:
    config = EngineConfig(model="m", served_model_name="m")
    engine = create_engine(name, config, CollectorRegistry(), Silent())
    assert engine.failure is None
    with pytest.raises(EngineNotReady):
        _ = engine.info


def test_an_unknown_engine_is_refused_with_those_that_exist() -> None:
    config = EngineConfig(model="m", served_model_name="m")
    with pytest.raises(ValueError, match=r"'other'; the engines are vllm, fake"):
        create_engine("other", config, CollectorRegistry(), Silent())


def test_two_configs_do_not_share_their_arguments() -> None:
    assert EngineConfig("m", "m").arguments is not EngineConfig("m", "m").arguments


@pytest.mark.parametrize("name", ENGINES)
def test_making_an_engine_imports_neither_torch_nor_vllm(name: str) -> None:
    program = f"""
import sys
from prometheus_client import CollectorRegistry
from tests.engine_adapter.test_factory import Silent
from engine_adapter.factory import EngineConfig, create_engine
create_engine({name!r}, EngineConfig("m", "m"), CollectorRegistry(), Silent())
assert not {{"torch", "vllm", "transformers"}} & set(sys.modules), "imported too early"
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr
