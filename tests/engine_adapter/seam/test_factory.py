"""Creating engines by name, without importing their libraries."""

import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import EngineNotReady
from engine_adapter.seam.factory import ENGINES, create_engine

ROOT = Path(__file__).parents[3]


class Silent:
    """An observer that ignores its reports."""

    def on_step(self, report: object) -> None:
        """Nothing."""

    def on_restart(self, succeeded: bool) -> None:
        """Nothing."""


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_can_be_created_without_a_start(name: str) -> None:
    config = EngineConfig(model="m", served_model_name="m")
    engine = create_engine(name, config, CollectorRegistry(), Silent())
    assert engine.failure is None
    with pytest.raises(EngineNotReady):
        _ = engine.info


def test_an_unknown_engine_is_refused_with_the_known_names() -> None:
    config = EngineConfig(model="m", served_model_name="m")
    with pytest.raises(ValueError, match=r"'other'; the engines are vllm, fake"):
        create_engine("other", config, CollectorRegistry(), Silent())


def test_two_configs_have_separate_arguments() -> None:
    assert EngineConfig("m", "m").arguments is not EngineConfig("m", "m").arguments


@pytest.mark.parametrize("name", ENGINES)
def test_creating_an_engine_imports_neither_torch_nor_vllm(name: str) -> None:
    program = f"""
import sys
from prometheus_client import CollectorRegistry
from tests.engine_adapter.seam.test_factory import Silent
from engine_adapter.seam.factory import EngineConfig, create_engine
create_engine({name!r}, EngineConfig("m", "m"), CollectorRegistry(), Silent())
assert not {{"torch", "vllm", "transformers"}} & set(sys.modules), "imported too early"
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr
