"""Requests that vLLM's front end refuses as soon as an engine speculates."""

from typing import Any

from engine_adapter.vllm_engine.panics import panics_as_errors


def patch_admission(llm: Any) -> None:
    """Lets an AsyncLLM admit requests with `min_p` or `logit_bias`.

    Its front end reads this configuration only to refuse what vLLM's own verification cannot do.
    """
    llm.input_processor.speculative_config = None


def patch_constraint_check(llm: Any, *, is_checked: bool) -> None:
    """Lets an AsyncLLM admit constraints unchecked, if `ConstraintChecker` checks them.

    Its own check compiles them in the one thread of all admissions, without a limit of time. Where
    it is needed, a panic of a backend is a refusal like its errors.
    """
    processor = llm.input_processor
    if is_checked:
        processor.structured_outputs_config = None
        return
    validate = processor._validate_params

    def validate_params(*args: Any) -> Any:
        with panics_as_errors():
            return validate(*args)

    processor._validate_params = validate_params
