"""Requests that vLLM's front end refuses as soon as an engine speculates."""

from typing import Any


def patch_admission(llm: Any) -> None:
    """Lets an AsyncLLM admit requests with `min_p` or `logit_bias`.

    Its front end reads this configuration only to refuse what vLLM's own verification cannot do.
    """
    llm.input_processor.speculative_config = None
