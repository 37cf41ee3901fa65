"""The names of a span's attributes."""

from dataclasses import replace

from opentelemetry.semconv._incubating.attributes import (
    client_attributes,
    error_attributes,
    gen_ai_attributes,
    http_attributes,
    url_attributes,
)

from engine_adapter.seam.types import SamplingOptions
from server.telemetry.generation import Selected
from server.telemetry.spans import generation_attributes
from tests.server.telemetry.generations import GENERATION


def test_the_names_are_those_of_the_conventions() -> None:
    modules = (
        client_attributes,
        error_attributes,
        gen_ai_attributes,
        http_attributes,
        url_attributes,
    )
    known = {value for module in modules for value in vars(module).values() if str(value) == value}
    everything = replace(
        GENERATION,
        sampling=SamplingOptions(
            top_k=3, max_tokens=9, seed=1, frequency_penalty=1, presence_penalty=1
        ),
        selected=Selected("auto", 4, "rule", "r"),
    )
    names = generation_attributes(everything)
    assert len([name for name in names if name.startswith("gen_ai.")]) == 18
    assert [n for n in names if not n.startswith("specgate.") and n not in known] == []
    own = {
        "client.address",
        "error.type",
        "http.request.method",
        "http.response.status_code",
        "http.route",
        "url.path",
        "url.scheme",
    }
    assert own - known == set()
