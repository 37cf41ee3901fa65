"""Replicas reached by their URLs, over the admin routes."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from server.control.records import SpecMethodBody, SwitchResult
from server.control.types import SwitchMode
from server.fleet.addresses import Address
from server.fleet.replica import (
    Generation,
    Order,
    Prepared,
    ReplicaRefused,
    ReplicaState,
    ReplicaUnreachable,
)
from server.tls_problems import tls_problem

CONNECT_TIMEOUT_S = 5.0

T = TypeVar("T")

_PREPARED, _RESULT = TypeAdapter(Prepared), TypeAdapter(SwitchResult)
_STATE = TypeAdapter(ReplicaState)


@dataclass(frozen=True, slots=True)
class _Fleet:
    generation: Generation
    switching: bool
    policies: dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Engine:
    state: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class _Drafts:
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class _Shown:
    """What views and peers read of `GET /v1/spec_method`."""

    spec_method: str
    num_speculative_tokens: int
    in_flight: dict[str, int]
    fleet: _Fleet
    engine: _Engine
    proposers: dict[str, _Drafts]


_SHOWN = TypeAdapter(_Shown)


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


def http_replicas(
    client: httpx.AsyncClient,
    addresses: Iterable[Address],
    headers: Mapping[str, str] = MappingProxyType({}),
) -> "list[HttpReplica]":
    """A replica for each address; `headers` are sent with every call, beside the client's."""
    return [HttpReplica(client, address, headers) for address in addresses]


class HttpReplica:
    """`replica.Replica` over HTTP. Its name is its URL."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        address: Address,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._client = client
        self._headers = headers
        self._url = address.url
        # The certificate has the name, not the address that it stands for.
        server_name = address.server_name
        self._extensions = {} if server_name is None else {"sni_hostname": server_name}

    @property
    def name(self) -> str:
        """How reports name it."""
        return self._url

    async def prepare(self, switch_id: str, order: Order, lease_s: float) -> Prepared:
        """See `replica.Replica`."""
        body = asdict(order) | {"switch_id": switch_id, "lease_s": lease_s}
        if order.mode != SwitchMode.DRAIN:
            del body["on_timeout"]
        return _read(_PREPARED, await self._call("POST", "/v1/prepare_switch", body))

    async def commit(self, switch_id: str, generation: int) -> SwitchResult:
        """See `replica.Replica`."""
        body = {"switch_id": switch_id, "generation": generation}
        return _read(_RESULT, await self._call("POST", "/v1/commit_switch", body))

    async def rollback(self, switch_id: str, generation: int | None) -> ReplicaState:
        """See `replica.Replica`."""
        body = {"switch_id": switch_id, "generation": generation}
        return _read(_STATE, await self._call("POST", "/v1/rollback_switch", body))

    async def state(self) -> ReplicaState:
        """See `replica.Replica`."""
        answer = await self.spec_method()
        fleet = answer["fleet"]
        return ReplicaState(
            fleet["generation"],
            SpecMethodBody(answer["spec_method"], answer["num_speculative_tokens"]),
            fleet["switching"],
            fleet["policies"],
        )

    async def spec_method(self) -> dict[str, Any]:
        """The answer of `GET /v1/spec_method`; it has what `_Shown` has, and more."""
        answer = await self._call("GET", "/v1/spec_method")
        if "fleet" not in answer:
            raise ReplicaUnreachable(f"{self._url} is of a version without fleet switches")
        _read(_SHOWN, answer)
        return answer

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        async def send() -> httpx.Response:
            return await self._client.request(
                method,
                self._url + path,
                json=body,
                headers=self._headers,
                extensions=self._extensions,
            )

        try:
            try:
                response = await send()
            except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
                # The server may just have closed an idle connection. Every call may be repeated.
                response = await send()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = tls_problem(error) or str(error) or type(error).__name__
            raise ReplicaUnreachable(f"cannot be reached: {reason}") from None
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ReplicaUnreachable(f"answers {response.status_code}, but not as Specgate")
        if response.status_code != 200:
            raise _refusal(response.status_code, answer.get("error"))
        return answer


def _refusal(status: int, error: object) -> ReplicaRefused:
    if not isinstance(error, dict):
        return ReplicaRefused(f"answers {status}")
    code = error.get("code") or error.get("type")
    message = " ".join(str(error.get("message")).split())
    return ReplicaRefused(f"{message} ({status} {code})", None if code is None else str(code))


def _read(adapter: TypeAdapter[T], answer: Any) -> T:
    try:
        return adapter.validate_python(answer)
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        raise ReplicaUnreachable(f"answers as another version of Specgate: {field}") from None
