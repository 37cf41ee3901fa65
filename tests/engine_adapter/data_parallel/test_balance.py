"""Which engine a sequence gets."""

from contextlib import ExitStack

from engine_adapter.data_parallel.balance import WAITING_WEIGHT, Balancer

ALL = [0, 1, 2]


def prompt(*tokens: int) -> tuple[int, ...]:
    """A tuple of its own, even if another one is equal."""
    return tokens


def test_idle_engines_are_taken_in_turn() -> None:
    balancer, engines = Balancer(3), []
    for _ in range(6):
        with balancer.assign(ALL, prompt(1, 2)) as assignment:
            engines.append(assignment.engine)
    assert engines == [0, 1, 2, 0, 1, 2]


def test_a_burst_is_spread_evenly() -> None:
    balancer = Balancer(3)
    with ExitStack() as stack:
        for i in range(9):
            stack.enter_context(balancer.assign(ALL, prompt(i, i)))
        assert [balancer.load(i) for i in ALL] == [3 * WAITING_WEIGHT] * 3
    assert [balancer.load(i) for i in ALL] == [0, 0, 0]


def test_a_sequence_that_waits_weighs_more_than_one_that_runs() -> None:
    balancer = Balancer(2)
    with ExitStack() as stack:
        for i in range(WAITING_WEIGHT - 1):
            balancer.begin(stack.enter_context(balancer.assign([0], prompt(i, 0))))
        stack.enter_context(balancer.assign([1], prompt(8, 8)))
        assert stack.enter_context(balancer.assign([0, 1], prompt(9, 9))).engine == 0


def test_only_the_given_engines_are_taken() -> None:
    balancer = Balancer(3)
    with ExitStack() as stack:
        taken = [stack.enter_context(balancer.assign([1], prompt(i, 1))).engine for i in range(4)]
    assert taken == [1, 1, 1, 1]


def test_choices_of_a_prompt_are_at_one_engine_while_one_of_them_runs() -> None:
    balancer, shared = Balancer(2), prompt(1, 2, 3)
    with ExitStack() as stack:
        choices = [stack.enter_context(balancer.assign([0, 1], shared)).engine for _ in range(3)]
        other = stack.enter_context(balancer.assign([0, 1], prompt(1, 2, 3))).engine
    assert len(set(choices)) == 1
    assert other != choices[0]
    assert not balancer._prompts, "nothing is kept of a prompt whose choices have ended"


def test_choices_leave_an_engine_that_cannot_take_them_any_more() -> None:
    balancer, shared = Balancer(2), prompt(1, 2, 3)
    with balancer.assign([0], shared) as first, balancer.assign([1], shared) as second:
        assert (first.engine, second.engine) == (0, 1)
        with balancer.assign([0, 1], shared) as third:
            assert third.engine == 1
    assert not balancer._prompts


def test_a_sequence_begins_once() -> None:
    balancer = Balancer(1)
    with balancer.assign([0], prompt(1, 2)) as assignment:
        balancer.begin(assignment)
        balancer.begin(assignment)
        assert balancer.load(0) == 1
    assert balancer.load(0) == 0
