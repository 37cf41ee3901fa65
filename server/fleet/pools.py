"""Connections to many replicas at once."""

import httpx


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
