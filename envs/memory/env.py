"""`skyrl/memory-v0`: read a long document section by section with a bounded memory, then answer.

After MemAgent: every section is a conversation of its own (memory, question, section), and what the agent
writes with `update_memory` is all that it takes along; after the last section it answers from memory alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import BeforeValidator

from skyrl_gym.chat import Dialect
from skyrl_gym.env import Grade, TextEnv
from skyrl_gym.envs.memory.families import FAMILIES
from skyrl_gym.envs.memory.khop import MAX_HOPS
from skyrl_gym.envs.memory.needles import VALUES
from skyrl_gym.envs.memory.problem import Problem
from skyrl_gym.envs.memory.reading import clip, sections
from skyrl_gym.envs.memory.scoring import score
from skyrl_gym.envs.memory.solve import cheats, gold_actions
from skyrl_gym.envs.memory.tasks import GeneratorSettings, generated_tasks, read_problem
from skyrl_gym.errors import ConfigError
from skyrl_gym.messages import Conversation, ToolCall, assistant, system, user
from skyrl_gym.probes import GOLD, Probe
from skyrl_gym.tasks import Task, TaskSet
from skyrl_gym.tools import ContextEdit, ToolResult, finish, tool

__all__ = ["MemoryEnv"]

# 4821 for "4821" is a slip of the form, which is not what this suite is about.
Text: TypeAlias = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) in (int, float) else value)]


class MemoryEnv(TextEnv):
    """Long-document question answering with a memory that the agent rewrites.

    Args:
        families: kinds of generated task, taken in turn; all of them unless given.
        document_words: length of the haystack; needles come on top.
        chunk_words: most words of a section, which ends with a sentence where one ends within them.
        memory_words: bound of the memory; what is longer is cut there, and the agent is told.
        values: what the needles hold: number, word, uuid.
        hops: how many steps the khop questions take, 1 to 4.
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
        values: Sequence[str] = tuple(VALUES),
        hops: Sequence[int] = tuple(range(1, MAX_HOPS + 1)),
        task_count: int = 1_000,
        worked_example: bool = False,
        max_turns: int | None = None,
        **kwargs: Any,
    ) -> None:
        sizes = {"document_words": document_words, "chunk_words": chunk_words, "memory_words": memory_words}
        for name, size in (sizes | {"task_count": task_count}).items():
            if size < 1:
                raise ConfigError(f"{name} is at least 1; got {size}")
        super().__init__(max_turns=max_turns, **kwargs)
        self.settings = GeneratorSettings(tuple(families), document_words, tuple(values), tuple(hops))
        self.settings.check()
        self.chunk_words = chunk_words
        self.memory_words = memory_words
        self.task_count = task_count
        self.worked_example = worked_example
        self._turn_limit = max_turns
        self.max_turns = self._turns_for(-(-document_words // chunk_words))  # about, until a task is set up

    def load_tasks(self, split: str) -> TaskSet:
        """Generated tasks."""
        return generated_tasks(self.settings, self.task_count, split)

    async def setup(self, task: Task) -> Conversation:
        """The first section. The turn limit leaves `max_invalid` turns for mistakes."""
        self._problem: Problem = read_problem(task)
        self._sections = sections(self._problem.document, self.chunk_words)
        self._read = 0
        self._memory, self._cut = "", False
        self._answer = ""
        self.max_turns = self._turns_for(len(self._sections))
        return self._prompt()

    @tool(effect="context")
    async def update_memory(self, memory: Text) -> ContextEdit | ToolResult:
        """Replace your memory and read on."""
        if self._read == len(self._sections):
            return ToolResult("The whole text has been read. Call answer.", is_error=True, invalid=True)
        self._memory = clip(memory, self.memory_words)
        self._cut = self._memory != memory.strip()
        self._read += 1
        return ContextEdit(self._prompt())

    @tool
    async def answer(self, text: Text) -> ToolResult:
        """Give the final answer."""
        self._answer = text
        return finish("The answer was taken.")

    async def grade(self) -> Grade:
        """Exact match for one answer, F1 over the set for several; no answer is 0."""
        reward, scores = score(self._answer, self._problem.answers)
        return Grade(reward, {**scores, "sections_read": self._read / len(self._sections)})

    def probes(self, task: Task) -> dict[str, Probe]:
        """The expert, at once and after reading everything, and the cheats."""
        experts = {GOLD: gold_actions(task), "gold after reading": gold_actions(task, self.chunk_words)}
        solved = {name: Probe(actions, least=1.0, most=1.0) for name, actions in experts.items()}
        return {**solved, **cheats(task)}

    def branch(self, twin: Self) -> None:
        """Nothing to do: an episode is made of values that are replaced, never changed."""

    def _turns_for(self, sections: int) -> int:
        return sections + 1 + self.max_invalid if self._turn_limit is None else self._turn_limit

    def _prompt(self) -> Conversation:
        kind, section = "answer", {}
        if self._read < len(self._sections):
            place = f"{self._read + 1}/{len(self._sections)}"
            kind, section = "section", {"section": self._sections[self._read].strip(), "place": place}
        memory = _shown_memory(self._memory, self.memory_words if self._cut else None)
        rules = _template("system").substitute(memory_words=self.memory_words)
        example = _example(kind, self._dialect) if self.worked_example else ()
        shown = _template(kind).substitute(section, question=self._problem.question, memory=memory)
        return (system(rules), *example, user(shown))


def _shown_memory(memory: str, cut_at: int | None = None) -> str:
    note = "" if cut_at is None else f" [cut here: it was longer than {cut_at} words]"
    return (memory or "(empty)") + note


@cache
def _template(name: str) -> Template:
    return Template((files("skyrl_gym.envs.memory") / "prompts" / f"{name}.md").read_text().strip())


_FACT = "The boat has 52 seats."
_EXAMPLES = {
    "section": (
        {"section": _FACT, "place": "1/1", "memory": _shown_memory("")},
        ToolCall("update_memory", {"memory": "52"}),
    ),
    "answer": ({"memory": "52"}, ToolCall("answer", {"text": "52"})),
}


def _example(kind: str, dialect: Dialect) -> Conversation:
    """A finished turn of another problem; its call is text, as a call without a result is no valid history."""
    fields, call = _EXAMPLES[kind]
    shown = _template(kind).substitute(fields, question="How many seats has the boat?")
    return (user(shown), assistant(dialect.render_call(call)))
