"""Names by their spelling, and which words stand in which files: made when the first question needs them."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

__all__ = ["Names", "Words", "plain", "subwords"]

# Much quicker than a regular expression: what can't be in a word becomes a space.
_SPACED = bytes(byte if (chr(byte).isalnum() and byte < 128) or byte == ord("_") else 32 for byte in range(256))
_NINE = ord("9")
_SUBWORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


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
    """The identifiers in files, comments too, and how often each stands in which; by what they are made of."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._paths = list(files)
        self.lengths: dict[str, int] = {}
        self._places: dict[bytes, array[int]] = defaultdict(lambda: array("I"))
        for number, (path, data) in enumerate(files.items()):
            counts = Counter(data.translate(_SPACED).split())
            self.lengths[path] = counts.total()
            for word, count in counts.items():
                if word[0] > _NINE:
                    self._places[word].extend((number, count))
        self.total = sum(self.lengths.values())
        self._parts: dict[str, list[bytes]] = defaultdict(list)
        for word in self._places:
            for part in set(subwords(word.decode())):
                self._parts[part].append(word)

    def times(self, part: str) -> dict[str, int]:
        """How often words that are made of this part, and perhaps of others, stand in which file."""
        times: dict[int, int] = defaultdict(int)
        for word in self._parts.get(part, ()):
            places = self._places[word]
            for number, count in zip(places[::2], places[1::2], strict=True):
                times[number] += count
        return {self._paths[number]: count for number, count in times.items()}
