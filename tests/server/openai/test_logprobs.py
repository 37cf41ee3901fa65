"""Log probabilities in OpenAI's two formats."""

from engine_adapter.seam.types import Alternative, TokenLogprob
from server.openai.logprobs import CompletionLogprobs, chat_logprobs

A, B, C = Alternative(1, "a", -0.5), Alternative(2, "é", -1.0), Alternative(3, "c", -2.0)
PARTIAL = Alternative(4, "\ufffd", float("-inf"))


def test_chat_lists_the_best_alternatives() -> None:
    assert chat_logprobs([TokenLogprob(C, (A, B))], 1) == {
        "content": [
            {
                "token": "c",
                "logprob": -2.0,
                "bytes": [99],
                "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}],
            }
        ],
        "refusal": None,
    }


def test_an_incomplete_character_has_no_bytes_and_no_infinity() -> None:
    (entry,) = chat_logprobs([TokenLogprob(PARTIAL)], 0)["content"]
    assert (entry["bytes"], entry["logprob"]) == (None, -9999.0)
    (entry,) = chat_logprobs([TokenLogprob(B)], 0)["content"]
    assert bytes(entry["bytes"]).decode() == "é"


def test_completion_adds_the_sampled_token_to_the_best() -> None:
    shaped = CompletionLogprobs(2).shape([TokenLogprob(C, (A, B)), TokenLogprob(A, (A, B))])
    assert shaped["top_logprobs"] == [{"a": -0.5, "é": -1.0, "c": -2.0}, {"a": -0.5, "é": -1.0}]
    assert shaped["token_logprobs"] == [-2.0, -0.5]


def test_offsets_continue_from_part_to_part() -> None:
    logprobs = CompletionLogprobs(0)
    first = logprobs.shape([None, TokenLogprob(A)], "<s>", "<s>a")
    second = logprobs.shape([TokenLogprob(B), TokenLogprob(C)])
    assert first["text_offset"] + second["text_offset"] == [0, 3, 4, 5]
    assert first["tokens"] == ["<s>", "a"]
    assert first["top_logprobs"] == [None, {"a": -0.5}]


def test_a_special_token_that_the_echo_lacks_has_no_width() -> None:
    logprobs = CompletionLogprobs(0)
    first = logprobs.shape([None, TokenLogprob(A), TokenLogprob(B)], "<s>", "aé")
    second = logprobs.shape([TokenLogprob(C)])
    assert first["text_offset"] + second["text_offset"] == [0, 0, 1, 2]
