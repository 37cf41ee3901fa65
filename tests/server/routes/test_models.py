"""`/v1/models` and `/version`."""

import time

import server
from tests.server.conftest import StartGateway
from tests.server.gateway import MODEL, Gateway


async def test_models_are_the_served_names(start: StartGateway) -> None:
    gateway = await start(served_model_name=("first", "org/second"))
    body = (await gateway.client.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == ["first", "org/second"]
    for model in body["data"]:
        assert model["object"] == "model"
        assert abs(model["created"] - time.time()) < 60
        assert model["max_model_len"] == gateway.runtime.info.max_model_len
        assert (model["tool_call_parser"], model["reasoning_parser"]) == ("hermes", None)
    one = (await gateway.client.get("/v1/models/org/second")).json()
    assert one == body["data"][1]


async def test_created_stays_through_a_switch(gateway: Gateway) -> None:
    before = (await gateway.client.get(f"/v1/models/{MODEL}")).json()
    await gateway.post("/v1/switch_spec_method", {"speculative_model": "none"})
    assert (await gateway.client.get(f"/v1/models/{MODEL}")).json() == before


async def test_unknown_model_is_a_404(gateway: Gateway) -> None:
    for path in ("/v1/models/nope", "/v1/models/"):
        response = await gateway.client.get(path)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (404, "model_not_found")
        assert error["param"] == "model"


async def test_version_names_gateway_and_engine(gateway: Gateway) -> None:
    body = (await gateway.client.get("/version")).json()
    engine_version = gateway.runtime.info.version
    assert body == {
        "version": server.__version__,
        "engine": "fake",
        "engine_version": engine_version,
    }
