"""Bodies that succeed, for every operation."""

from typing import Any

CHAT = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
COMPLETION = {"prompt": "def f(x):", "max_tokens": 4}
CHATS = CHAT | {"messages": [CHAT["messages"], CHAT["messages"]]}
TOKENS_IN = {"token_ids": [1, 5, 6], "sampling_params": {"max_tokens": 4}}
RESPONSE = {"input": "Say hello.", "max_output_tokens": 4}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
CONTINUOUS = {
    "stream": True,
    "n": 2,
    "stream_options": {
        "include_usage": True,
        "continuous_usage_stats": True,
        "continuous_spec_stats": True,
    },
}
TOKENS = {"return_token_ids": True, "prompt_logprobs": 1}
PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
MESSAGE: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 8}
MESSAGE_TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {"a": {}}}}
RESPONSE_TOOL = {"type": "function", "name": "f", "parameters": PARAMETERS}
FORM = {"purpose": "batch"}
"""The fields of the form of an upload; the file is added to them."""

LIFETIME = {"anchor": "created_at", "seconds": 3600}
BATCH: dict[str, Any] = {
    "input_file_id": "{file_id}",
    "endpoint": "/v1/completions",
    "completion_window": "24h",
}
PREDICTION = {"prediction": {"type": "content", "content": "hello"}}

SUCCESS: dict[str, list[Any]] = {
    "create_chat_completion": [
        CHAT,
        CHAT | {"n": 2, "logprobs": True, "top_logprobs": 2},
        CHAT | PREDICTION,
        CHAT | TOKENS,
        CHAT | {"tools": [TOOL], "tool_choice": "required"},
        CHAT | {"tools": [TOOL], "tool_choice": "required", "stream": True, "max_tokens": 60},
        CHAT | {"stream": True, "return_token_ids": True},
        CHAT | {"stop": "e", "unknown": 1},
        CHAT | {"stream": True},
        CHAT | STREAM | {"logprobs": True, "top_logprobs": 1},
        CHAT | CONTINUOUS,
        CHAT | STREAM | PREDICTION,
    ],
    "create_completion": [
        COMPLETION,
        COMPLETION | {"prompt": ["a", "b"], "n": 2, "logprobs": 2},
        COMPLETION | {"echo": True, "logprobs": 1, "max_tokens": 0},
        COMPLETION | {"prompt": [1, 5, 6]} | PREDICTION,
        COMPLETION | TOKENS,
        COMPLETION | {"stream": True, "return_token_ids": True},
        COMPLETION | {"stream": True},
        COMPLETION | STREAM | {"logprobs": 1, "echo": True},
        COMPLETION | CONTINUOUS,
    ],
    "create_response": [
        RESPONSE,
        RESPONSE | {"include": ["message.output_text.logprobs"], "top_logprobs": 1},
        RESPONSE | {"instructions": "Be brief.", "store": False} | PREDICTION,
        RESPONSE | {"tools": [RESPONSE_TOOL], "tool_choice": "required"},
        RESPONSE | {"tools": [RESPONSE_TOOL], "tool_choice": "required", "stream": True},
        RESPONSE | {"stream": True},
        RESPONSE | {"stream": True, "stream_options": {"continuous_spec_stats": True}},
        RESPONSE | {"stream": True, "include": ["message.output_text.logprobs"]},
    ],
    "create_chat_batch": [
        CHATS,
        CHATS | TOKENS,
        CHATS | STREAM | {"return_token_ids": True},
    ],
    "generate": [
        TOKENS_IN,
        TOKENS_IN | {"output_mode": "text", "return_token_ids": True},
        TOKENS_IN | {"sampling_params": {"logprobs": 2, "n": 2, "max_tokens": 4}},
        TOKENS_IN | {"sampling_params": {"prompt_logprobs": 1, "max_tokens": 4}},
        TOKENS_IN | STREAM | {"sampling_params": {"logprobs": 1, "max_tokens": 4}},
    ],
    "invoke": [CHAT, COMPLETION, CHAT | STREAM, COMPLETION | STREAM],
    "create_message": [
        MESSAGE,
        MESSAGE | {"system": "Be brief.", "stop_sequences": ["x"], "temperature": 0},
        MESSAGE | {"tools": [MESSAGE_TOOL], "tool_choice": {"type": "any"}},
        MESSAGE | {"tools": [MESSAGE_TOOL], "tool_choice": {"type": "any"}, "stream": True},
        MESSAGE | {"stream": True},
    ],
    "count_message_tokens": [{"messages": MESSAGE["messages"], "system": "Be brief."}],
    "retrieve_response": [None],
    "delete_response": [None],
    "cancel_response": [None],
    "create_conversation": [{}, {"items": [{"role": "user", "content": "a"}], "metadata": {}}],
    "retrieve_conversation": [None],
    "update_conversation": [{"metadata": {"a": "b"}}],
    "delete_conversation": [None],
    "create_conversation_items": [{"items": [{"role": "user", "content": "a"}]}],
    "list_conversation_items": [None],
    "retrieve_conversation_item": [None],
    "delete_conversation_item": [None],
    "compact_conversation": [{"input": "Say hello.", "max_output_tokens": 4}],
    "count_input_tokens": [{"input": "Say hello.", "instructions": "Be brief."}],
    "list_input_items": [None],
    "list_models": [None],
    "retrieve_model": [None],
    "get_version": [None],
    "tokenize": [{"prompt": "x"}, {"messages": CHAT["messages"], "return_token_strs": True}],
    "detokenize": [{"tokens": [5, 6]}],
    "get_tokenizer_info": [None],
    "list_files": [None],
    "create_file": [FORM],
    "retrieve_file": [None],
    "delete_file": [None],
    "retrieve_file_content": [None],
    "list_batches": [None],
    "create_batch": [BATCH, BATCH | {"metadata": {"a": "b"}, "output_expires_after": LIFETIME}],
    "retrieve_batch": [None],
    "cancel_batch": [None],
    "ping": [None],
    "get_health": [None],
    "get_readiness": [None],
    "get_load": [None],
    "get_metrics": [None],
    "switch_spec_method": [{"proposer": "ngram"}, {"proposer": "auto", "mode": "drain"}],
    "check_switch": [
        {"speculative_model": "ngram", "policies": {"auto": {}}},
        {"speculative_model": "none-such"},
    ],
    "set_fleet_method": [
        {"generation": 1, "spec_method": "ngram", "num_speculative_tokens": 5},
        {"generation": 2, "spec_method": "elsewhere", "num_speculative_tokens": 5},
    ],
    "get_spec_method": [None],
    "list_proposers": [None],
    "load_proposer": [{"name": "more", "method": "ngram", "num_speculative_tokens": 2}],
    "unload_proposer": [{"name": "more"}],
    "reset_prefix_cache": [None],
    "get_spec_policy": [None],
    "change_spec_policy": [{"rules": [{"name": "a", "use": {"proposer": "ngram"}}]}],
    "explain": [{"chat": CHAT}, {"completion": COMPLETION}],
    "load_lora_adapter": [{"lora_name": "sql", "lora_path": "sql"}],
    "unload_lora_adapter": [{"lora_name": "sql"}],
}
"""Operation -> bodies that succeed, in the document's order."""
