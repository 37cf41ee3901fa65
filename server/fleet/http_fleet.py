"""Replicas reached by their URLs, over the admin routes."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from server.control.types import ABORT_S, SwitchMode
from server.fleet.addresses import Address
from server.fleet.desired import DesiredState
from server.fleet.replica import Checked, FleetStatus, FleetSwitch, Obstacle, ReplicaState, Way
from server.schema.admin import Engine
from server.telemetry.rolling_stats import RollingStats
from server.tls_problems import tls_problem

CONNECT_TIMEOUT_S = 5.0

CALL_S = 10.0
"""How long a replica may take to answer, in seconds; a drain's time comes on top."""

T = TypeVar("T")


class SpecMethodAnswer(BaseModel, extra="allow"):
    """`GET /v1/spec_method`: what views and peers read of it, and the rest."""

    spec_method: str
    num_speculative_tokens: int
    in_flight: dict[str, int]
    fleet: FleetStatus
    engine: Engine
    proposers: dict[str, RollingStats]


# Making one takes longer than a call.
_ADAPTERS: dict[type, TypeAdapter[Any]] = {
    kind: TypeAdapter(kind) for kind in (Checked, ReplicaState, SpecMethodAnswer)
}


def fleet_client(
    admin_key: str | None, transport: httpx.AsyncBaseTransport | None = None
) -> httpx.AsyncClient:
    """A client for any number of replicas, without a limit of connections or of time.

    Replicas are called directly, never through a proxy of the environment.

    Args:
        admin_key: one key, or several separated by commas, of which the first is sent.
        transport: used instead of the network.

    Raises:
        ValueError: the key has a control character.
        OSError: the certificates of `SSL_CERT_FILE` cannot be loaded.
    """
    key = (admin_key or "").split(",")[0].strip()
    if not key.isprintable():
        raise ValueError("the key has a control character")
    return httpx.AsyncClient(
        headers={b"Authorization": f"Bearer {key}".encode()} if key else {},
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        transport=transport,
        trust_env=False,
        verify=httpx.create_ssl_context(),
    )


class PoolPerReplica(httpx.AsyncBaseTransport):
    """A pool of connections for each replica, for a command that calls all of them.

    httpx looks through all connections of a pool for each request, so the work for one pool grows
    with the square of the replicas. Pools stay until the transport is closed.

    Raises:
        OSError: the certificates of `SSL_CERT_FILE` cannot be loaded.
    """

    def __init__(self) -> None:
        self._certificates = httpx.create_ssl_context()
        self._pools: dict[tuple[str, str, int | None], httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`."""
        url = request.url
        origin = url.scheme, url.host, url.port
        if (pool := self._pools.get(origin)) is None:
            pool = httpx.AsyncHTTPTransport(verify=self._certificates, trust_env=False)
            self._pools[origin] = pool
        return await pool.handle_async_request(request)

    async def aclose(self) -> None:
        """See `httpx.AsyncBaseTransport`."""
        for pool in self._pools.values():
            await pool.aclose()


def limit_s(way: Way) -> float:
    """How long a replica may take to go to a state, in seconds."""
    return CALL_S + (way.timeout_s + ABORT_S if way.mode == SwitchMode.DRAIN else 0.0)


class HttpFleet:
    """`replica.Fleet` over HTTP; a replica's name is its URL.

    Args:
        headers: sent with every call, beside the client's.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        addresses: Iterable[Address],
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._client = client
        self._addresses = tuple(addresses)
        self._headers = headers

    async def check(self, fleet_switch: FleetSwitch) -> dict[str, Checked | Obstacle]:
        """See `Member.check`."""
        body = asdict(fleet_switch) | _fields(fleet_switch.way)
        del body["way"]
        return await self._call_each(CALL_S, Checked, "POST", "/v1/check_switch", body)

    async def set(self, desired: DesiredState, way: Way) -> dict[str, ReplicaState | Obstacle]:
        """See `Member.set`."""
        body = asdict(desired) | _fields(way)
        return await self._call_each(limit_s(way), ReplicaState, "PUT", "/v1/fleet_method", body)

    async def spec_methods(self, limit_s: float) -> dict[str, SpecMethodAnswer | Obstacle]:
        """What every replica shows within so many seconds."""
        return await self._call_each(limit_s, SpecMethodAnswer, "GET", "/v1/spec_method")

    async def _call_each(
        self, limit_s: float, kind: type[T], *call: Any
    ) -> dict[str, T | Obstacle]:
        async def answer(address: Address) -> T | Obstacle:
            try:
                async with asyncio.timeout(limit_s):
                    response = await self._call(address, *call)
            except TimeoutError:
                return Obstacle(f"no answer within {limit_s:g} s")
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reason = tls_problem(error) or str(error) or type(error).__name__
                return Obstacle(f"cannot be reached: {reason}")
            return _read(response, kind)

        answers = await asyncio.gather(*map(answer, self._addresses))
        return {a.url: value for a, value in zip(self._addresses, answers, strict=True)}

    async def _call(
        self, address: Address, method: str, path: str, body: Any = None
    ) -> httpx.Response:
        """The answer. Every call may be repeated."""
        # The certificate has the name, not the address that it stands for.
        sni = {} if address.server_name is None else {"sni_hostname": address.server_name}
        url = address.url + path

        async def send() -> httpx.Response:
            return await self._client.request(
                method, url, json=body, headers=self._headers, extensions=sni
            )

        try:
            return await send()
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            # The server may just have closed an idle connection.
            return await send()


def _fields(way: Way) -> dict[str, Any]:
    """The fields of a body; `on_timeout` is a drain's."""
    fields = asdict(way)
    if way.mode != SwitchMode.DRAIN:
        del fields["on_timeout"]
    return fields


def _read(response: httpx.Response, kind: type[T]) -> T | Obstacle:
    """What a replica has answered."""
    status = response.status_code
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        return Obstacle(f"answers {status}, but not as Specgate")
    if status != 200:
        return _refusal(status, answer.get("error"))
    try:
        value: T = _ADAPTERS[kind].validate_python(answer)
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        return Obstacle(f"answers as another version of Specgate: {field}")
    return value


def _refusal(status: int, error: object) -> Obstacle:
    if not isinstance(error, dict):
        return Obstacle(f"answers {status}", status)
    code = error.get("code") or error.get("type")
    message = " ".join(str(error.get("message")).split())
    text = f"{message} ({status} {code})"
    return Obstacle(text, status, None if code is None else str(code))
