"""The real servers of end-to-end tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.served import Served, documented_url
from tests.engine_adapter.vllm_engine.support.multimodal_families import FAMILIES
from tests.engine_adapter.vllm_engine.support.multimodal_models import write_multimodal


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The demo on README's address; SIGTERM must end it with status 0 and nothing alarming."""
    served = Served.start(documented_url(), tmp_path_factory.mktemp("e2e") / "server.log")
    yield served
    assert served.process.poll() is None, f"the server died:\n{served.tail()}"
    assert served.stop() == 0, served.tail()
    log = served.log.read_text(errors="replace")
    assert "Traceback" not in log, served.tail()
    assert "leaked" not in log, served.tail()


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A small LLaVA with random weights, which takes pictures."""
    yield from _served("llava", tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A small Qwen2-Audio with random weights, which takes recordings."""
    yield from _served("qwen2_audio", tmp_path_factory.mktemp("recordings"))


@pytest.fixture(scope="module")
def watching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A small Qwen3-VL with random weights, which takes videos."""
    yield from _served("qwen3_vl_video", tmp_path_factory.mktemp("videos"))


def _served(family: str, folder: Path) -> Iterator[Served]:
    target = write_multimodal(FAMILIES[family], folder / "target")
    flags = ("--proposer", "ngram", "--dtype", "float32", "--max-model-len", "1024")
    served = Served.start_beside(folder / "server.log", target, *flags)
    yield served
    assert served.process.poll() is None, f"the server died:\n{served.tail()}"
    assert served.stop() == 0, served.tail()
    assert "Traceback" not in served.log.read_text(errors="replace"), served.tail()
