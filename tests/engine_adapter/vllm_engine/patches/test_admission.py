"""What vLLM's front end checks of a constraint."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.vllm_engine.patches.admission import patch_constraint_check


class PanicException(BaseException):
    """As PyO3 names a panic in Rust."""


def front_end(error: BaseException) -> Any:
    """An AsyncLLM whose check of a request raises `error`."""

    def validate(params: Any, tasks: Any) -> None:
        raise error

    processor = SimpleNamespace(structured_outputs_config=object(), _validate_params=validate)
    return SimpleNamespace(input_processor=processor)


def test_a_constraint_is_checked_once() -> None:
    llm = front_end(AssertionError())
    patch_constraint_check(llm, is_checked=True)
    assert llm.input_processor.structured_outputs_config is None


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (PanicException("index out of bounds"), ValueError),
        (TypeError("index out of bounds"), TypeError),
        (KeyboardInterrupt("index out of bounds"), KeyboardInterrupt),
    ],
)
def test_a_panic_of_vllms_own_check_is_a_refusal(
    error: BaseException, raised: type[BaseException]
) -> None:
    llm = front_end(error)
    patch_constraint_check(llm, is_checked=False)
    assert llm.input_processor.structured_outputs_config is not None
    with pytest.raises(raised, match="index out of bounds"):
        llm.input_processor._validate_params(None, ())
