"""`boxes-v0`: open the right box, then say how many coins are in it. Two calls of tools, one after the other."""

from __future__ import annotations

import random
from typing import Any, Literal

from skyrl_gym import Message, Task, TaskSet, TextEnv, ToolCall, assistant, finish, tool, user
from skyrl_gym.messages import Conversation, tool_result
from skyrl_gym.tools import ToolResult

COLOURS = ("red", "blue", "green", "white")


class BoxesEnv(TextEnv):
    """Look something up with one tool and hand it in with another.

    Args:
        task_count: tasks a split.
        kwargs: of `TextEnv`.
    """

    default_max_turns = 3

    def __init__(self, *, task_count: int = 500, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.task_count = task_count

    def load_tasks(self, split: str) -> TaskSet:
        """Each has coins in its boxes, and one of them is asked for."""
        rows = []
        for number in range(self.task_count):
            draws = random.Random(f"{split}/{number}")
            coins = draws.sample(range(11, 99), len(COLOURS))
            rows.append({"id": f"{split}-{number}", "coins": coins, "asked": draws.randrange(len(COLOURS))})
        return TaskSet.from_rows(rows)

    def setup(self, task: Task) -> Conversation:
        """Two finished examples, for models that were never trained on tools, and the question."""
        self._coins = dict(zip(COLOURS, task.data["coins"], strict=True))
        self._asked = COLOURS[task.data["asked"]]
        self._answer: int | None = None
        return (*self._example("black", 52), *self._example("brown", 37), user(_question(self._asked)))

    def _example(self, box: str, coins: int) -> Conversation:
        """Its last call is text: the episode ended there, so it has no result."""
        look, hand_in = ToolCall("open_box", {"box": box}, f"look-{box}"), ToolCall("answer", {"coins": coins})
        return (
            user(_question(box)),
            assistant(None, look),
            tool_result(look, _content(box, coins)),
            assistant(self._dialect.render_call(hand_in)),
        )

    @tool
    def open_box(self, box: Literal["red", "blue", "green", "white"]) -> str:
        """Open a box and look into it.

        Args:
            box: its colour.
        """
        return _content(box, self._coins[box])

    @tool
    def answer(self, coins: int) -> ToolResult:
        """Hand in the answer.

        Args:
            coins: how many are in the box that was asked for.
        """
        self._answer = coins
        return finish("The answer was taken.")

    def respond(self, message: Message) -> str:
        """A call is needed."""
        return "Call open_box or answer."

    def grade(self) -> float:
        """1 for the right number."""
        return float(self._answer == self._coins[self._asked])


def _question(box: str) -> str:
    return f"How many coins are in the {box} box?"


def _content(box: str, coins: int) -> str:
    return f"The {box} box holds {coins} coins."
