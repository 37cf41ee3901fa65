"""Which requests give their places in the queue to another one."""

import random
from dataclasses import dataclass

import pytest

from server.control.admission.key_queues import QueueShares
from server.control.admission.request_cost import RequestCost


@dataclass(eq=False)
class Request:
    cost: RequestCost
    number: int


def request(key: str, number: int, tokens: int = 1, priority: int = 0) -> Request:
    return Request(RequestCost(key, 1, [tokens], tokens, priority), number)


def test_a_request_is_taken_out_once() -> None:
    queue = QueueShares[Request]()
    first, second = request("a", 1, 5), request("a", 2, 7)
    queue.add(first)
    queue.add(second)
    queue.discard(first)
    queue.discard(first)
    queue.discard(request("b", 1))
    assert (queue.num_requests, queue.prompt_tokens) == (1, 7)
    queue.discard(second)
    assert (queue.num_requests, queue.prompt_tokens) == (0, 0)


def test_an_empty_queue_takes_a_request_of_any_size() -> None:
    assert QueueShares[Request]().victims_for(request("a", 1, 10**9).cost, 1, 10) == []


def test_the_places_of_several_keys_are_taken_from_the_one_that_has_most_at_each_time() -> None:
    queue = QueueShares[Request]()
    entries = [request(key, i, 10) for i, key in enumerate("aaaabbbc")]
    for entry in entries:
        queue.add(entry)
    victims = queue.victims_for(request("d", 9, 5).cost, 100, 50)
    assert victims is not None
    # 85 of 50: a gives one and is equal to b, then both give in turns.
    assert [each.number for each in victims] == [3, 2, 6, 1]


@pytest.mark.parametrize("seed", range(50))
def test_whatever_comes_the_limits_hold_and_only_who_queues_more_is_displaced(seed: int) -> None:
    rng, most, most_tokens = random.Random(seed), 12, 200
    queue, queued, num_victims = QueueShares[Request](), list[Request](), 0

    def of(key: str | None) -> tuple[int, int]:
        own = [each for each in queued if each.cost.key == key]
        return len(own), sum(each.cost.prompt_tokens for each in own)

    for number in range(40):
        key = rng.choice("aaab" if number < 20 else "bcd")
        new = request(key, number, rng.randint(1, 30), rng.randint(0, 2))
        before = {key: of(key) for key in "abcd"}
        victims = queue.victims_for(new.cost, most, most_tokens)
        if victims is None:
            continue
        for each in victims:
            queue.discard(each)
            queued.remove(each)
            num_victims += 1
            had, tokens = before[str(each.cost.key)], before[key][1] + new.cost.prompt_tokens
            assert had[0] > before[key][0] + 1 or had[1] > tokens
            assert all(
                (other.cost.priority, other.number) < (each.cost.priority, each.number)
                for other in queued
                if other.cost.key == each.cost.key and other not in victims
            )
        queue.add(new)
        queued.append(new)
        assert queue.num_requests == len(queued) <= most
        assert queue.prompt_tokens == sum(e.cost.prompt_tokens for e in queued) <= most_tokens
    assert num_victims > 2
