"""`skyrl/memory-v0`: read a long document chunk by chunk with a bounded memory, then answer.

After MemAgent: every section is a conversation of its own (memory, question, section), and what the agent
writes with `update_memory` is all that it takes along; after the last section it answers from memory alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any, ClassVar

from skyrl_gym.chat import Dialect
from skyrl_gym.env import Grade, TextEnv
from skyrl_gym.envs.memory.families import FAMILIES
from skyrl_gym.envs.memory.problem import Problem
from skyrl_gym.envs.memory.scoring import exact_match, set_f1, token_f1
from skyrl_gym.envs.memory.tasks import generated_tasks, read_problem, sections
from skyrl_gym.errors import ConfigError
from skyrl_gym.messages import Conversation, ToolCall, assistant, system, user
from skyrl_gym.tasks import Task, TaskSet
from skyrl_gym.tools import ContextEdit, ToolResult, finish, tool

__all__ = ["MemoryEnv"]

NO_MEMORY = "(empty)"


class MemoryEnv(TextEnv):
    """Long-document question answering with a memory that the agent rewrites.

    Args:
        families: kinds of generated task; all of `FAMILIES` unless given.
        document_words: length of a generated document.
        chunk_words: length of a section.
        memory_words: bound of the memory; what is longer is cut there.
        task_count: generated tasks a split.
        worked_example: shows one finished turn of another problem in each conversation, which models that
            were never trained on tools need.
        kwargs: of `TextEnv`. `tasks` may hold rows with document, question and answers.
    """

    default_max_turns: ClassVar[int] = 0  # by the length of the document, see `setup`

    def __init__(
        self,
        *,
        families: Sequence[str] = tuple(FAMILIES),
        document_words: int = 2_000,
        chunk_words: int = 500,
        memory_words: int = 100,
        task_count: int = 1_000,
        worked_example: bool = False,
        max_turns: int | None = None,
        **kwargs: Any,
    ) -> None:
        sizes = {"document_words": document_words, "chunk_words": chunk_words, "memory_words": memory_words}
        for name, size in sizes.items():
            if size < 1:
                raise ConfigError(f"{name} is at least 1; got {size}")
        super().__init__(max_turns=max_turns, **kwargs)
        self.families = tuple(families)
        self.document_words = document_words
        self.chunk_words = chunk_words
        self.memory_words = memory_words
        self.task_count = task_count
        self.worked_example = worked_example
        self._turn_limit = max_turns

    def load_tasks(self, split: str) -> TaskSet:
        """Generated tasks."""
        return generated_tasks(self.families, self.document_words, self.task_count, split)

    async def setup(self, task: Task) -> Conversation:
        """The first section. The turn limit leaves `max_invalid` turns for mistakes."""
        self._problem: Problem = read_problem(task)
        self._sections = sections(self._problem.document, self.chunk_words)
        self._read = 0
        self._memory = ""
        self._answer: str | None = None
        self.max_turns = self._turn_limit or len(self._sections) + 1 + self.max_invalid
        return self._prompt()

    @tool(effect="context")
    async def update_memory(self, memory: str) -> ContextEdit | ToolResult:
        """Replace your memory and read on."""
        if self._read == len(self._sections):
            return ToolResult("The whole text has been read. Call answer.", is_error=True, invalid=True)
        self._memory = " ".join(memory.split()[: self.memory_words])
        self._read += 1
        return ContextEdit(self._prompt())

    @tool
    async def answer(self, text: str) -> ToolResult:
        """Give the final answer."""
        if self._read < len(self._sections):
            left = len(self._sections) - self._read
            return ToolResult(f"{left} sections are not read yet. Call update_memory.", is_error=True, invalid=True)
        self._answer = text
        return finish("The answer was taken.")

    async def grade(self) -> Grade:
        """Exact match for one answer, F1 over the set for several; no answer is 0."""
        answer, wanted = self._answer or "", self._problem.answers
        if len(wanted) > 1:
            score = set_f1(answer, wanted)
            return Grade(score, {"exact_match": float(score == 1.0), "f1": score})
        match = exact_match(answer, wanted[0])
        return Grade(match, {"exact_match": match, "f1": token_f1(answer, wanted[0])})

    def _prompt(self) -> Conversation:
        last = self._read == len(self._sections)
        kind = "answer" if last else "section"
        shown = user(
            _template(kind).substitute(
                question=self._problem.question,
                memory=self._memory or NO_MEMORY,
                **({} if last else {"section": self._sections[self._read]}),
            )
        )
        example = _example(kind, self._dialect) if self.worked_example else ()
        return (system(_template("system").template), *example, shown)


@cache
def _template(name: str) -> Template:
    return Template((files("skyrl_gym.envs.memory") / "prompts" / f"{name}.md").read_text().strip())


_FACT = "The code of the blue door is 4821."
_EXAMPLES = {
    "section": (
        {"section": f"Birds sang in the trees. {_FACT} It was late.", "memory": NO_MEMORY},
        ToolCall("update_memory", {"memory": _FACT}),
    ),
    "answer": ({"memory": _FACT}, ToolCall("answer", {"text": "4821"})),
}


def _example(kind: str, dialect: Dialect) -> Conversation:
    """A finished turn of another problem; its call is text, as a call without a result is no valid history."""
    fields, call = _EXAMPLES[kind]
    shown = _template(kind).substitute(question="What is the code of the blue door?", **fields)
    return (user(shown), assistant(dialect.render_call(call)))
