"""`send` and `recv`: every result comes once, and is that of the action that was sent."""

import random
import time
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skyrl_gym import ToolCall
from skyrl_gym.errors import MessageError
from skyrl_gym.vector import TextVectorEnv
from tests.vector.walks import ARRIVE, Gate, fall, walk

ENVS = 4


class Interleavings(RuleBasedStateMachine):
    """Sends, completions and receipts in any order, against a model of what is where."""

    def __init__(self) -> None:
        super().__init__()
        self.envs = TextVectorEnv([Gate] * ENVS)
        self.envs.reset()
        self.sent: dict[int, int] = {}  # environment -> token, waiting at its gate
        self.done: dict[int, int] = {}  # let through, not received
        self.received: list[int] = []
        self.tokens = 0

    def idle(self) -> list[int]:
        return [i for i in range(ENVS) if i not in self.sent and i not in self.done]

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def send(self, data: Any) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.idle()), min_size=1, unique=True))
        tokens = [self.tokens + k for k in range(len(chosen))]
        self.tokens += len(chosen)
        self.envs.send(chosen, [ToolCall("say", {"token": token}) for token in tokens])
        self.sent |= dict(zip(chosen, tokens, strict=True))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def complete(self, data: Any) -> None:
        number = data.draw(st.sampled_from(sorted(self.sent)))
        token = self.sent.pop(number)
        gate = self.envs.envs[number]
        assert isinstance(gate, Gate)
        gate.let_through(token)
        while number not in self.envs._pool._landed:  # hypothesis wants the same course each time
            time.sleep(0)
        self.done[number] = token

    @rule(data=st.data())
    def recv(self, data: Any) -> None:
        for arrival in self.envs.recv(data.draw(st.integers(0, len(self.done)))):
            token = self.done.pop(arrival.env_id)  # raises where it is doubled or someone else's
            assert arrival.observation[-1].text == f"token {token}"
            self.received.append(token)
        assert not self.done  # all that had arrived

    @precondition(lambda self: self.sent or self.done)
    @rule(data=st.data())
    def send_too_early(self, data: Any) -> None:
        number = data.draw(st.sampled_from(sorted(self.sent | self.done)))
        with pytest.raises(MessageError, match="have results to come"):
            self.envs.send(number, ToolCall("say", {"token": -1}))

    @rule()
    def recv_too_much(self) -> None:
        with pytest.raises(MessageError, match="are asked for"):
            self.envs.recv(len(self.sent) + len(self.done) + 1)

    @invariant()
    def nothing_doubled(self) -> None:
        assert len(set(self.received)) == len(self.received)
        assert len(self.received) + len(self.sent) + len(self.done) == self.tokens

    def teardown(self) -> None:
        for number, token in self.sent.items():
            gate = self.envs.envs[number]
            assert isinstance(gate, Gate)
            gate.let_through(token)
            self.done[number] = token
        found = {arrival.env_id: arrival.observation[-1].text for arrival in self.envs.recv(len(self.done))}
        assert found == {number: f"token {token}" for number, token in self.done.items()}
        self.envs.close()


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_fast_ones_do_not_wait_for_slow_ones(world: Any) -> None:
    envs = TextVectorEnv([world] * 3)
    envs.reset(seed=0)
    envs.send([0, 1, 2], [fall("hang"), walk(1), walk(2)])
    received = 0
    for _ in range(4):
        for arrival in envs.recv():
            assert arrival.env_id != 0
            received += 1
            envs.send(arrival.env_id, walk(1))
    assert received >= 4
    envs.close()


def test_a_timeout_gives_what_is_there(world: Any) -> None:
    envs = TextVectorEnv([world] * 2)
    envs.reset(seed=0)
    envs.send([0, 1], [fall("hang"), walk(1)])
    envs.recv(1)
    assert envs.recv(1, timeout_s=0.05) == []
    envs.close()


def test_episodes_begin_one_by_one_and_the_autoreset_mode_holds(world: Any) -> None:
    for mode in ("NextStep", "SameStep", "Disabled"):
        envs = TextVectorEnv([world] * 2, autoreset_mode=mode)
        with pytest.raises(MessageError, match="environment 1 has no episode yet: reset it first"):
            envs.send(1, walk(1))
        envs.send_reset(seed=4)
        begun = sorted(envs.recv(2), key=lambda arrival: arrival.env_id)
        assert [(one.reward, one.ended, len(one.observation)) for one in begun] == [(0.0, False, 1)] * 2
        envs.send(1, ARRIVE)
        (last,) = envs.recv()
        assert last.terminated and last.env_id == 1
        if mode == "SameStep":
            assert len(last.observation) == 1 and last.info["final_info"]["stop_reason"] == "done"
        elif mode == "NextStep":
            envs.send(1, walk(1))
            assert len(envs.recv()[0].observation) == 1
        else:
            with pytest.raises(MessageError, match="environment 1 has ended its episode"):
                envs.send(1, walk(1))
            envs.send_reset(1, options={"task": {"id": "mine"}})
            assert envs.recv()[0].info["task_id"] == "mine"
        envs.close()


def test_a_bug_is_raised_by_recv_and_takes_no_other_result_with_it(world: Any) -> None:
    envs = TextVectorEnv([world] * 3)
    envs.reset(seed=0)
    envs.send([0, 1, 2], [walk(1), fall("bug"), fall("lost")])
    with pytest.raises(TypeError, match="planted in a tool"):
        envs.recv(3)
    others = sorted(envs.recv(2), key=lambda arrival: arrival.env_id)
    assert [(one.env_id, one.truncated) for one in others] == [(0, False), (2, True)]
    envs.send_reset(1)
    assert len(envs.recv()) == 1
    envs.close()


@pytest.mark.parametrize("env_ids", [[0, 0], [2], [-1], 5])
def test_environments_that_do_not_exist_or_come_twice_are_refused(world: Any, env_ids: Any) -> None:
    envs = TextVectorEnv([world] * 2)
    envs.reset(seed=0)
    with pytest.raises(MessageError, match="env_ids go from 0 to 1, each given once"):
        envs.send(env_ids, walk(1) if isinstance(env_ids, int) else [walk(1)] * len(env_ids))
    envs.close()


def test_one_action_may_be_several_calls(world: Any) -> None:
    envs = TextVectorEnv([world] * 2)
    envs.reset(seed=0)
    envs.send(0, [walk(1), walk(2)])
    (arrival,) = envs.recv()
    assert [message.text for message in arrival.observation[-2:]] == ["walked 1", "walked 2"]
    envs.close()


def test_lockstep_and_own_pace_give_the_same_episodes(world: Any) -> None:
    def play(mode: str) -> dict[int, list[Any]]:
        rng, found = random.Random(0), {i: [] for i in range(3)}  # type: ignore[var-annotated]
        plans = {i: [rng.choice([walk(i), ARRIVE, fall("lost")]) for _ in range(6)] for i in range(3)}
        envs = TextVectorEnv([world] * 3)
        envs.reset(seed=11)
        if mode == "together":
            for turn in range(6):
                observations, rewards, *_ = envs.step([plans[i][turn] for i in range(3)])
                for i in range(3):
                    found[i].append((observations[i], rewards[i]))
        else:
            envs.send([0, 1, 2], [plans[i][0] for i in range(3)])
            while any(len(steps) < 6 for steps in found.values()):
                for arrival in envs.recv():
                    steps = found[arrival.env_id]
                    steps.append((arrival.observation, arrival.reward))
                    if len(steps) < 6:
                        envs.send(arrival.env_id, plans[arrival.env_id][len(steps)])
        envs.close()
        return found

    assert play("together") == play("apart")
