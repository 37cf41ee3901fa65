"""A deployment on a Ray cluster of this machine, and a client of its ingress. Needs Ray."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.context import _get_global_client
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.schema import ServeDeploySchema

from tests import ray_cluster
from tests.server.ray_serve.load import Load, texts_of, under_load

PATIENCE_S = 300.0
SWITCHES = 50


class Fleet:
    """A deployment that runs, and a client of its ingress."""

    def __init__(self, url: str, client: httpx.AsyncClient, args: dict[str, Any]) -> None:
        self.url = url
        self.client = client
        self._handle: Any = None
        self._args = args

    def deploy(self, replicas: int | None, **options: Any) -> None:
        """Deploys a Serve config file, or applies a changed one; returns before that has ended.

        Args:
            replicas: `None` with an `autoscaling_config`.
        """
        if replicas is not None:
            options["num_replicas"] = replicas
        application = {
            "name": "specgate",
            "route_prefix": "/",
            "import_path": "tests.server.ray_serve.fallible:app",
            "args": self._args,
            "deployments": [{"name": "specgate", **options}],
        }
        config = ServeDeploySchema.model_validate({"applications": [application]})
        _get_global_client().deploy_apps(config)

    async def switch(self, method: str | None, **fields: Any) -> httpx.Response:
        """A switch, at the replica that the proxy chooses."""
        body = {"speculative_model": method, **fields}
        return await self.client.post("/v1/switch_spec_method", json=body)

    async def switched(self, method: str | None, **fields: Any) -> int:
        """A switch that must succeed; the fleet generation."""
        answer = await self.switch(method, **fields)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["fleet_generation"])

    async def each(self, method: str, *arguments: Any) -> list[Any]:
        """Runs a method of `Fallible` at every replica that lives; Serve may know of others."""
        if self._handle is None:
            self._handle = serve.get_deployment_handle("specgate", "specgate")
        calls = self._handle.broadcast(method, *arguments)
        try:
            results = await calls.results_async(timeout_s=60, return_exceptions=True)
        except DeploymentUnavailableError:
            return []
        living = [result for result in results if not isinstance(result, RayActorError)]
        for result in living:
            if isinstance(result, Exception):
                raise result
        return living

    async def states(self) -> set[tuple[str, int]]:
        """The methods and fleet generations of all replicas, as each of them says itself."""
        return {(method, generation) for _, method, generation in await self.each("active")}

    async def until(self, condition: Callable[[], Any]) -> None:
        """Waits until an awaitable condition holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():  # noqa: ASYNC110
                await asyncio.sleep(0.2)

    async def has(self, replicas: int) -> bool:
        """Whether there are so many replicas, and Serve routes to them and to no other."""
        status = await asyncio.to_thread(serve.status)
        application = status.applications.get("specgate")
        deployment = application and application.deployments.get("specgate")
        if deployment is None or deployment.replica_states != {"RUNNING": replicas}:
            return False
        if deployment.status == "UPDATING":
            return False  # some are still to be replaced
        answer = await self.client.get("/v1/fleet")
        # It may have reached a replica that died.
        if answer.status_code != 200 or len(answer.json()["replicas"]) != replicas:
            return False
        return len(await self.each("active")) == replicas

    async def is_ready(self) -> bool:
        """Whether a replica takes requests."""
        return (await self.client.get("/ready")).status_code == 200


@asynccontextmanager
async def serving(args: dict[str, Any], replicas: int) -> AsyncIterator[Fleet]:
    """A cluster of its own, with so many replicas that serve."""
    with ray_cluster.cluster() as address:
        port = ray_cluster.free_ports(1)
        await asyncio.to_thread(ray.init, address, namespace="serve", log_to_driver=False)
        http = {"host": ray_cluster.HOST, "port": port}
        await asyncio.to_thread(serve.start, http_options=http, proxy_location="HeadOnly")
        url = f"http://{ray_cluster.HOST}:{port}"
        try:
            async with httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as client:
                made = Fleet(url, client, args)
                await asyncio.to_thread(made.deploy, replicas)
                await made.until(made.is_ready)
                await made.until(lambda: made.has(replicas))
                yield made
        finally:
            await asyncio.to_thread(serve.shutdown)
            await asyncio.to_thread(ray.shutdown)


async def switch_under_load(
    fleet: Fleet, mode: str, methods: Sequence[str], prompts: Sequence[str]
) -> tuple[Load, list[int]]:
    """Switches `SWITCHES` times while clients send requests.

    After each, every replica must have the method and the number of the switch.

    Returns:
        The load, which has compared every text with that of plain decoding, and the numbers of the
        switches.
    """
    await fleet.switched("none", mode="drain", timeout_s=60)
    expected = await texts_of(fleet.client, prompts)
    generations = []
    async with under_load(fleet.url, expected) as load:
        for method in itertools.islice(itertools.cycle(methods), SWITCHES):
            begun, before = load.begun, load.done
            generations.append(await fleet.switched(method, mode=mode, timeout_s=60))
            assert await fleet.states() == {(method, generations[-1])}
            # Requests run before every switch, and others begin after it.
            await fleet.until(lambda: _more(load, begun, before))  # noqa: B023
    return load, generations


async def _more(load: Load, begun: int, done: int) -> bool:
    return load.begun > begun and load.done > done
