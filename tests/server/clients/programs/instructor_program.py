"""instructor: a nested model in its default mode and in others, sync, async and in parts."""

import asyncio
import json
import sys
from typing import Annotated, Any, Literal

import instructor
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field


class Address(BaseModel):
    """An address."""

    street: Literal["a", "b"]
    number: Literal[1, 2]


class User(BaseModel):
    """A user."""

    name: Literal["x", "y"]
    home: Address
    others: Annotated[list[Address], Field(max_length=2)]


def is_whole(user: Any) -> bool:
    return isinstance(user, User) and isinstance(user.home, Address) and user.name in ("x", "y")


def main() -> None:
    url, _ = sys.argv[1:]
    client = OpenAI(base_url=url, api_key="none", max_retries=0)
    asked: dict[str, Any] = {
        "model": "specgate-demo",
        "response_model": User,
        "messages": [{"role": "user", "content": "Jason lives in 1 A street."}],
        "max_retries": 0,
        "max_tokens": 200,
        "temperature": 0,
    }
    patched = instructor.from_openai(client)
    user, completion = patched.chat.completions.create_with_completion(**asked)
    told = {"default": is_whole(user), "usage": completion.usage.completion_tokens > 0}
    provider = instructor.from_provider(
        "openai/specgate-demo", base_url=url, api_key="none", max_retries=0
    )
    without_model = {name: value for name, value in asked.items() if name != "model"}
    told["provider"] = is_whole(provider.chat.completions.create(**without_model))
    *_, last = patched.chat.completions.create_partial(**asked)
    told["partial"] = last.home.street in ("a", "b") and len(last.others) <= 2
    for name in ("TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"):
        other = instructor.from_openai(client, mode=instructor.Mode[name])
        told[name] = is_whole(other.chat.completions.create(**asked))

    async def asynchronous() -> bool:
        own = instructor.from_openai(AsyncOpenAI(base_url=url, api_key="none", max_retries=0))
        return is_whole(await own.chat.completions.create(**asked))

    told["async"] = asyncio.run(asynchronous())
    print(json.dumps(told))


main()
