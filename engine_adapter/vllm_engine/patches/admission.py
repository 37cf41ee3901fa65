"""Requests that vLLM's front end refuses as soon as an engine speculates."""

from typing import Any


def patch_admission(llm: Any) -> None:
    """Lets an AsyncLLM admit requests with `min_p` or `logit_bias`.

    Its front end reads this configuration only to refuse what vLLM's own verification cannot do.
    """
    llm.input_processor.speculative_config = None


def patch_constraint_check(llm: Any) -> None:
    """Lets an AsyncLLM admit constraints unchecked, because `ConstraintChecker` checks them.

    Its own check compiles them in the one thread of all admissions, without a limit of time.
    """
    llm.input_processor.structured_outputs_config = None
