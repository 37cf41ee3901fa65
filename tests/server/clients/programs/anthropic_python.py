"""Uses Anthropic's Python client as its documentation says; prints what it saw as JSON.

Usage: anthropic_python.py URL
"""

import asyncio
import json
import sys
from typing import Any

import anthropic

TOOL: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
OPTIONS: Any = {"model": "specgate-demo", "max_tokens": 64}


def tool_loop(client: anthropic.Anthropic) -> dict[str, Any]:
    """Answers the model's calls until it has none."""
    messages: list[Any] = [{"role": "user", "content": "How is the weather"}]
    cities = []
    while True:
        answer = client.messages.create(**OPTIONS, tools=[TOOL], messages=messages)
        if answer.stop_reason != "tool_use":
            break
        calls = [block for block in answer.content if block.type == "tool_use"]
        cities += [call.input["city"] for call in calls]
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": "rain"} for call in calls
        ]
        messages.append({"role": "assistant", "content": answer.content})
        messages.append({"role": "user", "content": results})
    kinds = [block.type for block in answer.content]
    return {"cities": cities, "kinds": kinds, "stop": answer.stop_reason}


def streamed(client: anthropic.Anthropic) -> dict[str, Any]:
    """A stream by the client's own helper."""
    messages: list[Any] = [{"role": "user", "content": "How is the weather"}]
    with client.messages.stream(**OPTIONS, tools=[TOOL], messages=messages) as stream:
        kinds = sorted({event.type for event in stream})
        final = stream.get_final_message()
    call = final.content[-1]
    return {"kinds": kinds, "input": call.input, "stop": final.stop_reason}


async def asynchronous(url: str) -> str:
    """The async client."""
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        answer = await client.messages.create(
            **OPTIONS, system="Be brief.", messages=[{"role": "user", "content": "word"}]
        )
        return answer.content[0].type


def main() -> None:
    """Runs everything."""
    url = sys.argv[1]
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    counted = client.messages.count_tokens(
        model="specgate-demo", messages=[{"role": "user", "content": "word"}]
    )
    whole = client.messages.create(
        **OPTIONS,
        messages=[{"role": "user", "content": "word"}],
        extra_body={"spec_decode": {"proposer": "ngram"}},
    )
    try:
        client.messages.create(**{**OPTIONS, "model": "none-such"}, messages=[])
        error = ""
    except anthropic.APIStatusError as caught:
        error = f"{type(caught).__name__} {caught.request_id}"
    print(
        json.dumps(
            {
                "loop": tool_loop(client),
                "stream": streamed(client),
                "async": asyncio.run(asynchronous(url)),
                "counted": counted.input_tokens,
                "read": whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0),
                "proposer": whole.metrics["speculative_decoding"]["proposer"],
                "drafted": whole.usage.num_draft_tokens,
                "error": error,
            }
        )
    )


if __name__ == "__main__":
    main()
