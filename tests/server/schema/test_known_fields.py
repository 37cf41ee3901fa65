"""The fields of a body at a path: through lists, objects, unions and aliases."""

from collections.abc import Sequence

import pytest

from server.schema.admin import LoadRequest, SwitchRequest
from server.schema.chat import ChatCompletionRequest
from server.schema.known_fields import fields_at
from server.schema.policy import ExplainRequest


@pytest.mark.parametrize(
    ("kind", "path", "known"),
    [
        (SwitchRequest, [], {"speculative_model", "mode"}),
        (ChatCompletionRequest, ["stream_options"], {"include_usage"}),
        (ChatCompletionRequest, ["response_format", "json_schema"], {"name", "schema", "strict"}),
        (ChatCompletionRequest, ["tools", 3, "function"], {"name", "parameters"}),
        (ExplainRequest, ["chat", "spec_decode"], {"proposer", "num_speculative_tokens"}),
    ],
)
def test_the_fields_of_an_object_are_found_by_their_names_in_a_body(
    kind: type, path: Sequence[str | int], known: set[str]
) -> None:
    found = set(fields_at(kind, path))
    assert known <= found
    assert not any(name.endswith("_") for name in found)


@pytest.mark.parametrize("path", [["nothing"], ["model"], ["tools", "x"], ["model", 0, "x"]])
def test_only_an_object_has_fields(path: Sequence[str | int]) -> None:
    assert fields_at(ChatCompletionRequest, path) == {}


def test_an_object_of_any_fields_and_no_type_at_all_have_none() -> None:
    assert fields_at(LoadRequest, []) == fields_at(None, []) == {}


def test_a_field_of_several_types_has_an_entry_of_each() -> None:
    formats = fields_at(ChatCompletionRequest, ["response_format"])
    assert len(formats["type"]) == 3
    assert [field.is_required() for field in formats["schema"]] == [False, False]
