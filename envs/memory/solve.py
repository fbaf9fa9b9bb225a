"""Known players: an expert that scores 1, proof that a task can be solved, and cheats that must not score."""

from __future__ import annotations

from collections.abc import Mapping

from skyrl_gym.envs.memory.reading import sections
from skyrl_gym.envs.memory.tasks import read_problem
from skyrl_gym.messages import ToolCall
from skyrl_gym.probes import Probe
from skyrl_gym.tasks import Task

__all__ = ["cheats", "gold_actions"]

MOST_FOR_EVERY_WORD = 0.75  # F1 of a set: in a short document much of what stands there is wanted


def gold_actions(task: Task, chunk_words: int | None = None) -> list[ToolCall]:
    """One call a turn: the answer at once, or after reading every section of an environment with `chunk_words`."""
    problem = read_problem(task)
    text = ", ".join(aliases[0] for aliases in problem.answers)
    count = len(sections(problem.document, chunk_words)) if chunk_words else 0
    return [*(_note(text) for _ in range(count)), _answer(text)]


def cheats(task: Task) -> Mapping[str, Probe]:
    """Players that know no answer, by name: each scores 0, or less than the whole where a set is wanted."""
    problem = read_problem(task)
    words = dict.fromkeys(word.strip(".,") for word in problem.document.split())
    answers = {
        "empty answer": "",
        "the question": problem.question,
        "the document": problem.document,
        "every word": ", ".join(words),
        "separators": ",;\n and ,",
    }
    listed = len(problem.answers) > 1
    most = {"every word": MOST_FOR_EVERY_WORD} if listed else {}
    return {name: Probe([_answer(text)], most=most.get(name, 0.0)) for name, text in answers.items()}


def _note(text: str) -> ToolCall:
    return ToolCall("update_memory", {"memory": text})


def _answer(text: str) -> ToolCall:
    return ToolCall("answer", {"text": text})
