"""Which tasks come, in which mixture: an endless sequence that depends on its arguments alone."""

from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyrl_gym import TaskSet
from skyrl_gym.errors import ConfigError
from skyrl_gym.trainer.stream import Draw, Ingredient, TaskStream


def tasks(name: str, count: int) -> TaskSet:
    return TaskSet.from_rows([{"id": f"{name}{i}"} for i in range(count)], name)


def drawn(stream: TaskStream, count: int) -> list[Draw]:
    return list(islice(iter(stream.next, None), count))


def test_every_task_comes_once_before_any_comes_again() -> None:
    stream = TaskStream([Ingredient("a", tasks("t", 7))], 2)
    first, second = ([draw.task.id for draw in drawn(stream, 7)] for _ in range(2))
    assert sorted(first) == sorted(second) == [f"t{i}" for i in range(7)]
    assert first != second


@given(st.integers(0, 40), st.integers(1, 30), st.integers(0, 3))
def test_going_on_at_a_position_gives_what_would_have_come(position: int, count: int, seed: int) -> None:
    def stream() -> TaskStream:
        return TaskStream([Ingredient("a", tasks("t", 5), 2.0), Ingredient("b", tasks("u", 3), {0: 0, 9: 4})], 2, seed)

    whole, late = stream(), stream()
    late.skip_to(position)
    assert drawn(late, count) == drawn(whole, position + count)[position:]
    assert late.position == position + count


@settings(max_examples=30)
@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=4), st.integers(50, 300))
def test_shares_follow_the_weights_at_every_moment(weights: list[float], count: int) -> None:
    stream = TaskStream([Ingredient(f"e{i}", tasks("t", 2), w) for i, w in enumerate(weights)], 4)
    seen: Counter[str] = Counter()
    for number, draw in enumerate(drawn(stream, count), 1):
        seen[draw.env_id] += 1
        for i, weight in enumerate(weights):
            assert abs(seen[f"e{i}"] - number * weight / sum(weights)) < len(weights)


def test_a_schedule_moves_from_one_environment_to_another() -> None:
    stream = TaskStream(
        [Ingredient("easy", tasks("t", 2), {0: 1, 10: 0}), Ingredient("hard", tasks("u", 2), {0: 0, 10: 1})], 10
    )
    ids = [draw.env_id for draw in drawn(stream, 200)]
    assert ids[:9].count("easy") > 7
    assert ids[40:60].count("easy") in (9, 10, 11)
    assert set(ids[102:]) == {"hard"}


def test_fewer_tasks_than_a_batch_has_groups_are_drawn_again() -> None:
    stream = TaskStream([Ingredient("a", tasks("t", 1))], 4)
    assert [draw.task.id for draw in drawn(stream, 4)] == ["t0"] * 4
    assert len({draw.requests(2)[0].group for draw in drawn(stream, 4)}) == 4


def test_no_two_trajectories_of_a_run_have_the_same_key() -> None:
    stream = TaskStream([Ingredient("a", TaskSet.from_rows([{"id": "x"}, {"id": "y"}]))], 2)
    keys = [request.key for draw in drawn(stream, 9) for request in draw.requests(4)]
    assert {request.samples for draw in drawn(stream, 2) for request in draw.requests(4)} == {4}
    assert len(set(keys)) == 36


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TaskStream([], 1), "at least one environment"),
        (lambda: Ingredient("a", tasks("t", 0)), "task set 't' of a is empty"),
        (lambda: Ingredient("a", tasks("t", 1), -1.0), "a weight is 0 or more"),
        (lambda: Ingredient("a", tasks("t", 1), {}), "needs at least one step"),
        (lambda: TaskStream([Ingredient("a", tasks("t", 1))] * 2, 1), "a is in the mixture twice"),
        (lambda: TaskStream([Ingredient("a", tasks("t", 1), {0: 1, 5: 0})], 1), "at step 5 all weights"),
    ],
)
def test_what_cannot_be_mixed_is_refused(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_stream_does_not_go_back() -> None:
    stream = TaskStream([Ingredient("a", tasks("t", 1))], 1)
    stream.skip_to(3)
    with pytest.raises(ConfigError, match="it can't go back to 2"):
        stream.skip_to(2)
