"""A client that a generator makes from the document works against the server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client_tools import python_tool, run
from tests.server.contract.contract import contract
from tests.server.threaded import ThreadedServer

pytestmark = pytest.mark.prove

VERSION = "0.29.1"

SCRIPT = """
import sys
from made import AuthenticatedClient
from made.api.chat import create_chat_completion
from made.api.completions import create_completion
from made.api.models import list_models
from made.api.responses import create_response
from made.api.speculation import switch_spec_method
from made.models import (
    ChatCompletion, ChatCompletionRequest, Completion, CompletionRequest, ErrorResponse,
    ModelList, ResponseObject, ResponsesRequest, SwitchRequest, SwitchResult,
)

client = AuthenticatedClient(sys.argv[1], "none", httpx_args={"trust_env": False})

text = CompletionRequest(prompt="def f(x):", stop="none such", max_tokens=3)
done = create_completion.sync(client=client, body=text)
assert isinstance(done, Completion), done
assert done.choices[0].finish_reason == "length"
assert done.metrics.speculative_decoding.proposer == "draft"

wrong = create_completion.sync(client=client, body=CompletionRequest(prompt="x", n=0))
assert isinstance(wrong, ErrorResponse), wrong
assert wrong.error.param == "n"

chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
said = create_chat_completion.sync(client=client, body=ChatCompletionRequest.from_dict(chat))
assert isinstance(said, ChatCompletion), said

asked = ResponsesRequest.from_dict({"input": "hi", "max_output_tokens": 3})
answer = create_response.sync(client=client, body=asked)
assert isinstance(answer, ResponseObject), answer
assert answer.output[0].content[0].text

assert isinstance(list_models.sync(client=client), ModelList)
switched = switch_spec_method.sync(client=client, body=SwitchRequest(proposer="ngram"))
assert isinstance(switched, SwitchResult), switched
print("all is well")
"""


@pytest.fixture
def server() -> Iterator[ThreadedServer]:
    """A server without keys."""
    running = ThreadedServer().start()
    yield running
    running.stop()


def test_a_generated_client_gets_typed_answers(
    server: ThreadedServer, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    command = python_tool(
        pytestconfig, f"openapi-python-client=={VERSION}", "openapi-python-client"
    )
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(contract().document), "utf-8")
    target = ["--path", file, "--output-path", tmp_path / "made", "--meta", "none"]
    run([command, "generate", *map(str, target)], 300, tmp_path)
    (tmp_path / "try.py").write_text(SCRIPT)
    done = run([command.parent / "python", "try.py", server.url], 120, tmp_path)
    assert done.stdout == "all is well\n", done.stderr
