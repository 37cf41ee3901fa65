"""What an unknown path, or a wrong method, is told: which routes exist, the closest ones first."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.routing import BaseRoute, Match

from engine_adapter.seam.text import short_repr

MAX_ROUTES = 6
"""The most routes that a message lists."""

MAX_PATH = 100
"""The most characters of a path that are compared with the routes, and repeated."""

MAX_METHOD = 20
"""The most characters of a method that are repeated."""

_MAIN = (
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/completions",
    "/v1/messages",
    "/v1/models",
    "/tokenize",
)
"""The routes that a client most likely needs, of those that exist."""

_TEXT = "this server generates text"
_MISSING: Mapping[str, str] = {
    "embeddings?": f"{_TEXT} and makes no embeddings",
    "rerank|score|classify|pooling": f"{_TEXT}; it does not rank, score or classify",
    "audio": f"{_TEXT} and does not speak; send recordings in a chat, to a model that takes them",
    "realtime": f"{_TEXT}; it has no live sessions",
    "images|videos": f"{_TEXT} and makes no images or videos",
    "moderations": f"{_TEXT} and moderates none",
    "uploads|vector_stores|containers": f"{_TEXT}; POST /v1/files stores whole files for batches",
    "assistants|threads|evals": f"{_TEXT} and keeps no assistants or threads",
    "fine_tuning|fine-tunes": f"{_TEXT} and trains no models",
    "messages/batches": f"{_TEXT} and keeps no batches",
    "complete": f"{_TEXT} for messages, not for Anthropic's older prompts",
    "api": "this server speaks OpenAI's API, not Ollama's",
    "generate|generate_stream|infill": "this server speaks OpenAI's API",
}
"""The first parts of a path after the version -> why another server's route is not here."""


def unknown_path(path: str, routes: Iterable[BaseRoute]) -> str:
    """The message for a path that no route has."""
    visible_routes = [r for r in routes if isinstance(r, APIRoute) and r.include_in_schema]
    methods: dict[str, set[str]] = {}
    for route in visible_routes:
        methods.setdefault(route.path_format, set()).update(route.methods)
    message = f"There is no {_path_text(path)} here"
    reason = _reason(path)
    if not reason and (correction := _corrected_path(path, visible_routes)) is not None:
        right_path, route = correction
        allowed = " or ".join(sorted(methods[route.path_format]))
        return (
            f"{message}; did you mean {allowed} {_path_text(right_path)}?{_hint(path, right_path)}"
        )
    close = difflib.get_close_matches(path[:MAX_PATH].lower(), methods, n=3, cutoff=0.75)
    paths = [*(() if reason else close), *(p for p in _MAIN if p in methods)]
    descriptions = [f"{' and '.join(sorted(methods[p]))} {p}" for p in dict.fromkeys(paths)]
    message += f": {reason}." if reason else "."
    if descriptions:
        message += (
            f" It has {', '.join(descriptions[:MAX_ROUTES])}, and what GET /openapi.json lists."
        )
    return message


def is_missing(path: str) -> bool:
    """Whether the path is that of another server's route."""
    return _reason(path) is not None


def wrong_method(request: Request, allowed: Sequence[str]) -> str:
    """The message for a path whose routes lack the method; `allowed` is what they have."""
    if request.method == "OPTIONS" and "access-control-request-method" in request.headers:
        return (
            "Pages of other origins may not call this server from a browser; --allowed-origins "
            "allows them."
        )
    method = short_repr(request.method[:MAX_METHOD])[1:-1]
    path = _path_text(request.scope["path"])
    return f"{path} does not support {method}; it supports {' and '.join(allowed)}."


def allowed_methods(request: Request) -> list[str]:
    """The methods of all routes of the path; Starlette's own list has those of the first one."""
    methods: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    return sorted(methods)


def _corrected_path(path: str, routes: Iterable[APIRoute]) -> tuple[str, APIRoute] | None:
    """The path that differs only in its prefix, its slashes or the case of letters."""
    parts = _parts(path)
    while parts and parts[0].lower() in ("v1", "openai"):
        del parts[0]
    suffix = "/".join(parts)
    for right_path in (
        f"/v1/{suffix}",
        f"/{suffix}",
        f"/v1/{suffix.lower()}",
        f"/{suffix.lower()}",
    ):
        for route in routes:
            if right_path != path and route.path_regex.match(right_path):
                return right_path, route
    return None


def _hint(path: str, right_path: str) -> str:
    if not right_path.startswith("/v1/"):
        return ""
    versions = [part.lower() for part in _parts(path)].count("v1")
    if versions > 1:
        return " The base URL of the client has /v1 already."
    return "" if versions else " The base URL of an OpenAI client ends in /v1."


def _reason(path: str) -> str | None:
    parts = [part.lower() for part in _parts(path)]
    while parts and re.fullmatch(r"v\d+|openai", parts[0]):
        del parts[0]
    begins = ("/".join(parts[:1]), "/".join(parts[:2]))
    for task, why in _MISSING.items():
        if any(re.fullmatch(task, begin) for begin in begins):
            return why
    return None


def _parts(path: str) -> list[str]:
    return [part for part in path[:MAX_PATH].split("/") if part]


def _path_text(path: str) -> str:
    """A path as a message repeats it: without control characters, and cut."""
    return (
        short_repr(path)[1:-1] if len(path) <= MAX_PATH else short_repr(path[:MAX_PATH])[1:-1] + "…"
    )
