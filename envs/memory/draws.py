"""Random choices of one task: what names its answer is new each time and belongs to the task's split alone."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from zlib import crc32

from skyrl_gym.envs.memory.lexicon import LEXICON
from skyrl_gym.errors import ConfigError

__all__ = ["Draws", "coined_word", "split_of"]

_TEST_SHARE = 5  # one text of so many belongs to the test split
_MISSES = 10_000


class Draws:
    """Draws that depend on a seed text alone: the same in every process.

    Args:
        split: "train" or "test": where every text of `fresh` belongs.
        seed: any text; it names the task.
    """

    def __init__(self, split: str, seed: str) -> None:
        self.random = Random(seed)
        self._split = split
        self._taken: set[str] = set()

    def fresh(self, make: Callable[[Random], str]) -> str:
        """A text made by `make`, never given before and never given in another split.

        Raises:
            ConfigError: `make` has no such text left.
        """
        for _ in range(_MISSES):
            text = make(self.random)
            if text not in self._taken and split_of(text) == self._split:
                self._taken.add(text)
                return text
        raise ConfigError(f"a task needs more than {len(self._taken)} different names; set a smaller document_words")

    def coined(self, count: int, syllables: int = 3) -> list[str]:
        """Different words that mean nothing."""
        return [self.fresh(lambda random: coined_word(random, syllables)) for _ in range(count)]


def split_of(text: str) -> str:
    """The only split whose keys, values and names may be this text."""
    return "train" if crc32(text.lower().encode()) % _TEST_SHARE else "test"


def coined_word(random: Random, syllables: int = 3) -> str:
    """A word that means nothing."""
    return "".join(random.choices(LEXICON["syllables"], k=syllables))
