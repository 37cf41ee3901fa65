"""The flags of `vllm serve` that belong to vLLM's own server: what users do here instead.

Most engine arguments are not listed: they are flags here, too, or `RESERVED_ARGUMENTS` has the
reason. `docs/from-vllm-serve.md` shows these tables.
"""

from collections.abc import Mapping

ALWAYS_SO: Mapping[str, str] = {
    "disable_log_requests": "texts of requests are never logged",
    "enable_prompt_tokens_details": "`usage` always has them",
    "enable_request_id_headers": "each response has `x-request-id`",
    "disable_fastapi_docs": "the server has only /openapi.json",
}
"""Flag of vLLM -> why it may be given and changes nothing."""

_ONE_SERVER = "one process serves the engine; put several servers behind a proxy (docs/deploy.md)"
_PROXY = "a proxy in front of the server does that"
_CORS = "origins of --allowed-origins may use every method and header of the API, without cookies"
_NO_TEXTS = "texts are never logged"
_ITS_OWN_ENGINES = "--data-parallel-size starts and balances the engines"
_NO_GRPC = "the API is HTTP only"
_OWN_SERVER = "the server is Specgate's, which has limits of its own: --max-header-bytes and others"
_NOT_SERVED = "the server has no such API"

INSTEAD: Mapping[str, str] = {
    "allow_credentials": _CORS,
    "allowed_headers": _CORS,
    "allowed_methods": _CORS,
    "anthropic_disabled_thinking_effort": "a request says it itself, in `thinking`",
    "api_server_count": _ONE_SERVER,
    "chat_template_content_format": "the format is read from the chat template",
    "cohere_format": _NOT_SERVED,
    "cohere_is_reasoning_model": _NOT_SERVED,
    "data_parallel_supervisor_port": _ITS_OWN_ENGINES,
    "default_chat_template_kwargs": "send `chat_template_kwargs` in each request",
    "disable_access_log_for_endpoints": "calls of /health, /ready and /metrics are not logged; "
    "--no-access-log logs none",
    "disable_uvicorn_access_log": "--no-access-log",
    "dp_supervisor_probe_failure_threshold": _ITS_OWN_ENGINES,
    "dp_supervisor_probe_interval_s": _ITS_OWN_ENGINES,
    "dp_supervisor_probe_timeout_s": _ITS_OWN_ENGINES,
    "enable_flash_late_interaction": _NOT_SERVED,
    "enable_force_include_usage": "send `stream_options` with `include_usage` in each request",
    "enable_log_deltas": _NO_TEXTS,
    "enable_log_outputs": _NO_TEXTS,
    "enable_log_requests": _NO_TEXTS,
    "enable_offline_docs": "the server has only /openapi.json",
    "enable_per_request_metrics": "`metrics` of a response has its statistics of drafts",
    "enable_scale_out": _NOT_SERVED,
    "enable_server_load_tracking": "/load always answers",
    "enable_ssl_refresh": "SIGHUP reads the certificate again",
    "enable_tokenizer_info_endpoint": "/tokenizer_info answers administrators",
    "exclude_tools_when_tool_choice_none": "leave out `tools`",
    "fingerprint_mode": "`system_fingerprint` is not sent",
    "fingerprint_value": "`system_fingerprint` is not sent",
    "grpc": _NO_GRPC,
    "grpc_port": _NO_GRPC,
    "h11_max_header_count": "--max-headers",
    "h11_max_incomplete_event_size": "--max-header-bytes",
    "headless": _ITS_OWN_ENGINES,
    "log_error_stack": "the log has the traceback of an error of the server; clients never get it",
    "max_log_len": _NO_TEXTS,
    "middleware": _PROXY,
    "reasoning_parser_plugin": "--reasoning-parser takes vLLM's own parsers",
    "reasoning_effort_map": "the chat template gets `reasoning_effort` as the request has it",
    "response_role": "the role is always `assistant`",
    "return_tokens_as_token_ids": "send it in each request",
    "root_path": _PROXY,
    "shutdown_timeout": "--shutdown-timeout-s",
    "sse_keep_alive_interval": "--keepalive-s",
    "ssl_ca_certs": _PROXY,
    "ssl_cert_reqs": _PROXY,
    "ssl_ciphers": _PROXY,
    "task": "every model is served for generation",
    "tokens_only": "/v1/completions takes token ids; `return_token_ids` returns them",
    "tool_parser_plugin": "--tool-call-parser takes vLLM's own parsers",
    "tool_server": "the server runs no tools",
    "tool_strict_level": "a tool's `strict` decides",
    "trust_request_mm_kwargs": "requests can have `mm_processor_kwargs` without it",
    "uds": "--host and --port",
    "uvicorn_log_level": "--log-level",
}
"""Flag of vLLM that is refused -> what to do instead, or why there is nothing."""
