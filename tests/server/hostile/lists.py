"""Long lists, and long texts that would be tokenized."""

from tests.server.hostile.body import COMPLETIONS, RESPONSES, Hostile

LISTS = (
    Hostile("100,000 stop strings", lambda: {"stop": ["a"] * 100_000}, "stop"),
    Hostile("a stop string of 2 MB", lambda: {"stop": "a" * 2_000_000}, "stop"),
    Hostile("a list of lists to stop at", lambda: {"stop": [["a"]] * 1000}, "stop.0"),
    Hostile("500,000 stop tokens", lambda: {"stop_token_ids": [5] * 500_000}, "stop_token_ids"),
    Hostile("100,000 bad words", lambda: {"bad_words": ["word"] * 100_000}, "bad_words"),
    Hostile("a bad word of 1 MB", lambda: {"bad_words": ["w" * 1_000_000]}, "bad_words.0"),
    Hostile(
        "a bias for 100,000 tokens",
        lambda: {"logit_bias": {str(i): 1 for i in range(100_000)}},
        "logit_bias",
    ),
    Hostile("a bias for a key of 1 MB", lambda: {"logit_bias": {"1" * 1_000_000: 1}}, "logit_bias"),
    Hostile(
        "500,000 allowed tokens", lambda: {"allowed_token_ids": [5] * 500_000}, "allowed_token_ids"
    ),
    Hostile(
        "20,000 messages",
        lambda: {"messages": [{"role": "user", "content": "a"}] * 20_000},
        "messages",
    ),
    Hostile(
        "20,000 parts",
        lambda: {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 20_000}]
        },
        "messages",
    ),
    Hostile(
        "20,000 calls",
        lambda: {
            "messages": [
                {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * 20_000}
            ]
        },
        "messages",
    ),
    Hostile(
        "20,000 items",
        lambda: {"input": [{"role": "user", "content": "a"}] * 20_000},
        "input",
        RESPONSES,
    ),
    Hostile("100,000 documents", lambda: {"documents": [{"text": "a"}] * 100_000}, "documents"),
    Hostile(
        "2,048 prompts of 128 choices", lambda: {"prompt": ["a"] * 2048, "n": 128}, "n", COMPLETIONS
    ),
)
"""Long lists."""

TEXTS = (
    Hostile("a prompt of 8 MB", lambda: {"prompt": "word " * 1_600_000}, "prompt", COMPLETIONS),
    Hostile(
        "a message of 8 MB",
        lambda: {"messages": [{"role": "user", "content": "word " * 1_600_000}]},
        "messages",
    ),
    Hostile("an input of 8 MB", lambda: {"input": "word " * 1_600_000}, "input", RESPONSES),
    Hostile(
        "a prediction of 8 MB",
        lambda: {"prediction": {"type": "content", "content": "word " * 1_600_000}},
        "prediction.content",
    ),
    Hostile(
        "a prediction of 20,000 parts",
        lambda: {
            "prediction": {"type": "content", "content": [{"type": "text", "text": "a"}] * 20_000}
        },
        "prediction.content",
    ),
    Hostile(
        "500 prompts that are short",
        lambda: {"prompt": ["word " * 20] * 500, "max_tokens": 1},
        None,
        COMPLETIONS,
    ),
)
"""Long texts that would be tokenized."""
