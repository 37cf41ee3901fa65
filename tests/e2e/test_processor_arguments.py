"""A request's own arguments of the processor of media, on a real engine."""

from typing import Any

import httpx
import pytest

from tests.e2e.served import Served
from tests.server.pictures import data_url, encoded

pytestmark = [pytest.mark.engine, pytest.mark.prove]

SMALLER, LARGER = {"max_pixels": 64 * 64}, {"min_pixels": 500 * 500, "max_pixels": 700 * 700}


def ask(served: Served, arguments: dict[str, Any] | None, proposer: str = "ngram") -> Any:
    """The response to a chat about a picture of 280 x 280 pixels."""
    picture = {"type": "image_url", "image_url": {"url": data_url(encoded(280, 280))}}
    body = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Say it"}, picture]}],
        "max_tokens": 16,
        "temperature": 0,
        "spec_decode": {"proposer": proposer},
        "mm_processor_kwargs": arguments,
    }
    with httpx.Client(trust_env=False, timeout=120) as client:
        return client.post(f"{served.url}/v1/chat/completions", json=body)


def text_and_tokens(response: Any) -> tuple[str, int]:
    """The answer, and the tokens of the prompt."""
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]


def test_the_size_of_a_picture_is_the_requests_and_a_cached_prefix_is_of_the_same_size(
    watching: Served,
) -> None:
    sizes = (None, SMALLER, LARGER)
    plain = [text_and_tokens(ask(watching, size, "none")) for size in sizes]
    tokens = [count for _, count in plain]
    assert tokens[1] < tokens[0] < tokens[2]
    assert len({text for text, _ in plain}) == 3
    # Again, in another order, with drafts, and with what is cached of each.
    again = [text_and_tokens(ask(watching, size)) for size in reversed(sizes)]
    assert again == plain[::-1]


@pytest.mark.parametrize(
    "arguments",
    [
        {"patch_size": 7},
        {"merge_size": 1},
        {"size": {"height": 8, "width": 8}},
        {"min_pixels": 2**25, "max_pixels": 2**25},
    ],
)
def test_arguments_that_do_not_fit_are_a_400_and_end_no_engine(
    watching: Served, arguments: dict[str, Any]
) -> None:
    response = ask(watching, arguments)
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["param"] == "mm_processor_kwargs" or error["code"] == "context_length_exceeded"
    assert ask(watching, None).status_code == 200
