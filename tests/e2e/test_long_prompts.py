"""Long prompts on a real server: they are read in parts, so that no other request waits for one."""

import pytest

from tests.e2e.served import Served

pytestmark = pytest.mark.engine

PROMPT, PART = 2000, 128


def test_a_prompt_is_read_in_parts_while_its_request_is_alone(served: Served) -> None:
    served.post(
        "/v1/completions", {"prompt": "a", "max_tokens": 1}
    )  # the metric exists from then on
    served.wait_until_idle()
    before = served.scrape()
    # Ids that no other test sends, so that no part is in the prefix cache.
    prompt = [5 + (7 * i * i + 13 * i) % 900 for i in range(PROMPT)]
    answer = served.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}).json()
    after = served.scrape()
    assert answer["usage"]["prompt_tokens"] == PROMPT
    name = "specgate_step_seconds_count"
    parts = after(name, kind="prefill") - before(name, kind="prefill")
    assert PROMPT / PART <= parts <= PROMPT / PART + 2
