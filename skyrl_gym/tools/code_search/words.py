"""Names by their spelling, and which words stand in which files: made when the first question needs them."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, count
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Names", "Words", "plain", "subwords"]

Numbers: TypeAlias = npt.NDArray[Any]
# Much quicker than a regular expression: what can't be in a word becomes a space.
_SPACED = bytes(byte if (chr(byte).isalnum() and byte < 128) or byte == ord("_") else 32 for byte in range(256))
_SUBWORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SUBWORD_OR_END = re.compile(rf"{_SUBWORD.pattern}|\n")


def subwords(text: str) -> list[str]:
    """`HTTPServer_port2` as http, server, port, 2."""
    return [word.lower() for word in _SUBWORD.findall(text)]


def plain(name: str) -> str:
    """A name without what spelling differs in: case and underscores."""
    return name.replace("_", "").lower() or name


class Names:
    """Names by how they are spelled, by a part of them, and by the words that they are made of."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)
        low = [name.lower() for name in self._names]
        self._text = "\n".join(low)
        self._starts = list(accumulate((len(name) + 1 for name in low), initial=0))
        self.spelled: dict[str, list[str]] = defaultdict(list)
        self._parts: dict[str, set[str]] = defaultdict(set)
        for name in self._names:
            self.spelled[plain(name)].append(name)
            for part in subwords(name):
                self._parts[part].add(name)
        self.forms = list(self.spelled)

    def containing(self, part: str) -> set[str]:
        """Those that hold a part, in whatever case."""
        low, found = part.lower(), set()
        at = self._text.find(low)
        while at >= 0:
            number = bisect_right(self._starts, at) - 1
            found.add(self._names[number])
            at = self._text.find(low, self._starts[number + 1])
        return found

    def made_of(self, parts: Sequence[str]) -> set[str]:
        """Those that are made of all these words, and perhaps of more."""
        return set.intersection(*(self._parts.get(part, set()) for part in parts)) if parts else set()


class Words:
    """The words in files, comments too, by the parts that identifiers are made of, and how often each is in which file.

    All of it lies in a few arrays: `_files` and `_times` of one part from `_starts[part]` on.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.paths = list(files)
        words: dict[bytes, int] = defaultdict(count().__next__)
        held, times, sizes = array("I"), array("I"), array("I")
        for data in files.values():
            counts = Counter(data.translate(_SPACED).split())
            held.extend(map(words.__getitem__, counts))
            times.extend(counts.values())
            sizes.append(len(counts))
        file_of = np.repeat(np.arange(len(sizes)), _numbers(sizes))
        self.lengths = np.bincount(file_of, _numbers(times), len(sizes))
        self._parts, firsts, part_of = _parts(words)
        self._fill(_numbers(held), file_of, _numbers(times), firsts, part_of)

    def _fill(self, word: Numbers, file: Numbers, times: Numbers, firsts: Numbers, part_of: Numbers) -> None:
        """Each word in a file stands for all its parts; what is the same part and file is added up."""
        sizes = np.diff(firsts)[word]
        ends = np.cumsum(sizes)
        inside = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)
        part = part_of[np.repeat(firsts[word], sizes) + inside]
        keys, places = np.unique(part * len(self.paths) + np.repeat(file, sizes), return_inverse=True)
        self._times = np.bincount(places, np.repeat(times, sizes), len(keys)).astype(np.float32)
        self._files = (keys % max(len(self.paths), 1)).astype(np.int32)
        bounds = np.arange(len(self._parts) + 2) * len(self.paths)  # parts count from 1
        self._starts = np.searchsorted(keys, bounds).astype(np.int32)

    def times(self, part: str) -> tuple[Numbers, Numbers]:
        """The numbers of the files with words that are made of this part and perhaps of others, and how many."""
        number = self._parts.get(part)
        if number is None:
            return self._files[:0], self._times[:0]
        these = slice(self._starts[number], self._starts[number + 1])
        return self._files[these], self._times[these]


def _numbers(values: array[int]) -> Numbers:
    return np.frombuffer(values, np.uint32).astype(np.int64)


def _parts(words: Iterable[bytes]) -> tuple[dict[str, int], Numbers, Numbers]:
    """The number of each part, from 1; where in the last array those of each word begin; and that array."""
    parts: dict[str, int] = defaultdict(count().__next__)
    end = parts["\n"]
    found = _SUBWORD_OR_END.findall("".join(f"{word.decode()}\n" for word in words))
    numbers = np.fromiter(map(parts.__getitem__, map(str.lower, found)), np.int64, len(found))
    different = len(parts)
    is_end = numbers == end
    word = np.cumsum(is_end)[~is_end]
    keys = np.unique(word * different + numbers[~is_end])  # a part that a word has twice counts once
    firsts = np.searchsorted(keys, np.arange(is_end.sum() + 1) * different)
    del parts["\n"]
    return dict(parts), firsts, keys % different
