"""The time of a comparison tells nothing of a key: hashes are compared, all of them, in full."""

import gc
import hmac
import random
import time
from collections.abc import Callable
from statistics import median
from types import SimpleNamespace

import httpx
import pytest

from server.settings import keys as module
from server.settings.keys import Key, KeySet, Role
from server.settings.types import digest_of
from tests.server.conftest import StartGateway

SECRETS = [f"sk-{random.Random(number).getrandbits(192):048x}" for number in range(20)]

SAMPLES, CALLS = 3000, 50
"""How often each side is measured, and the comparisons of one measurement."""

TOLERANCE = 0.03
"""How far the medians of equal work may differ; the leak of the control is twenty times that."""


def key_set() -> KeySet:
    keys = KeySet()
    for number, secret in enumerate(SECRETS):
        keys.add(Key(f"team-{number}", Role.API, digest_of(secret.encode())))
    return keys


@pytest.mark.parametrize("token", [SECRETS[0], SECRETS[7], SECRETS[-1], "sk-wrong", ""])
def test_a_token_is_compared_with_every_key_by_its_hash(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = key_set()
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, digest: bytes) -> bool:
        compared.append((given, digest))
        return hmac.compare_digest(given, digest)

    monkeypatch.setattr(module, "hmac", SimpleNamespace(compare_digest=compare))
    found = keys.find(token.encode())
    assert (found is not None) == (token in SECRETS)
    hashed = digest_of(token.encode())
    assert compared == [(hashed, digest_of(secret.encode())) for secret in SECRETS]
    assert {len(part) for pair in compared for part in pair} == {32}


@pytest.mark.parametrize("path", ["/v1/models", "/v1/spec_method", "/metrics"])
async def test_nothing_else_compares_keys(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    gateway = await start(api_key=["sk-api"], admin_key=["sk-admin"], metrics_key=["sk-metrics"])

    async def ask(key: str) -> httpx.Response:
        return await gateway.client.get(path, headers={"authorization": f"Bearer {key}"})

    assert (await ask("sk-admin")).status_code == 200
    monkeypatch.setattr(module, "hmac", SimpleNamespace(compare_digest=lambda *_: False))
    for key in ("sk-api", "sk-admin", "sk-metrics"):
        assert (await ask(key)).status_code == 401


def difference(one: Callable[[], object], other: Callable[[], object]) -> float:
    """By which part the medians of two functions' times differ, measured in turns."""
    times: tuple[list[int], list[int]] = ([], [])
    order = random.Random(1)
    gc.disable()
    try:
        for _ in range(SAMPLES):
            sides = [(one, times[0]), (other, times[1])]
            order.shuffle(sides)
            for call, taken in sides:
                begun = time.perf_counter_ns()
                for _ in range(CALLS):
                    call()
                taken.append(time.perf_counter_ns() - begun)
    finally:
        gc.enable()
    return abs(median(times[0]) / median(times[1]) - 1)


def with_hash_beginning_like(secret: str) -> str:
    """A token whose hash begins with the same two bytes as that of the secret."""
    begin = digest_of(secret.encode())[:2]
    tokens = (f"sk-{number:048x}" for number in range(10_000_000))
    return next(token for token in tokens if digest_of(token.encode())[:2] == begin)


@pytest.mark.prove
def test_the_time_of_a_comparison_is_the_same_for_every_token() -> None:
    keys, secret = key_set(), SECRETS[3]
    nearly, far = f"{secret[:-1]}x", f"x{secret[1:]}"

    def stops_at_the_first_difference(token: str) -> bool:
        return all(mine == theirs for mine, theirs in zip(secret, token, strict=True))

    def leak(compare: Callable[[str], object], one: str, other: str) -> float:
        return difference(lambda: compare(one), lambda: compare(other))

    def find(token: str) -> Key | None:
        return keys.find(token.encode())

    # The measurement tells tokens apart where their time differs.
    assert leak(stops_at_the_first_difference, nearly, far) > 20 * TOLERANCE
    pairs = {
        "nearly all of a key, and nothing of it": (nearly, far),
        "a hash that begins like a key's": (with_hash_beginning_like(secret), far),
        "the first key and the last": (SECRETS[0], SECRETS[-1]),
    }
    leaks = {name: round(leak(find, *pair), 4) for name, pair in pairs.items()}
    print(leaks)
    assert all(part < TOLERANCE for part in leaks.values()), leaks
