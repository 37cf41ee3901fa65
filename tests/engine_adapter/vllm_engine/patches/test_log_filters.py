"""Lines of vLLM's log that are dropped, and others that are not."""

import logging
from collections.abc import Iterator

import pytest

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.log_filters import silence_engine_death

pytestmark = pytest.mark.needs_vllm


@pytest.fixture
def logger(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> Iterator[logging.Logger]:
    """vLLM's logger of the module of the name in `compat`, without any filter, read by `caplog`.

    vLLM may have configured its loggers not to propagate, so `caplog` is attached to this one.
    """
    logger = logging.getLogger(getattr(compat, request.param).__module__)
    propagate, filters = logger.propagate, list(logger.filters)
    logger.propagate = False
    logger.filters.clear()
    logger.addHandler(caplog.handler)
    yield logger
    logger.removeHandler(caplog.handler)
    logger.propagate = propagate
    logger.filters[:] = filters


@pytest.mark.parametrize("logger", ["AsyncLLM"], indirect=True)
def test_only_the_traceback_of_a_dead_engine_is_not_shown(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    silence_engine_death()
    silence_engine_death()
    assert len(logger.filters) == 1
    for error in (compat.EngineDeadError(), ValueError("mistake")):
        logger.error("output handler failed: %r", type(error), exc_info=error)
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error]
