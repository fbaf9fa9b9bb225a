"""Keys and values of what a model has read, kept so that a conversation's next turn reads only what is new.

Where there is no room for all, the oldest goes first. Looking something up does not make it younger: what a running row
has gone on from is soon replaced by that row's own, and must not push out a conversation that waits for its tool.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress, count
from operator import ne

import torch

__all__ = ["NOTHING", "Ids", "Known", "Layers", "Prefixes"]

Ids = tuple[int, ...]
Layers = list[tuple[torch.Tensor, torch.Tensor]]  # keys and values of each layer: (heads, tokens, size of a head)


@dataclass(frozen=True)
class Known:
    """The first `tokens` ids of a prompt have been read; `layers` are of these, and maybe of more after them."""

    tokens: int
    layers: Layers


NOTHING = Known(0, [])


class Prefixes:
    """What has been read, by its ids.

    Args:
        most_tokens: tokens that are kept at most, of all sequences.
    """

    def __init__(self, most_tokens: int) -> None:
        self._room = self._most_tokens = most_tokens
        self._kept: dict[Ids, Layers] = {}
        self._order: list[Ids] = []  # sorted, so that what has most in common with given ids is next to them
        self._stamp = 0

    @property
    def tokens(self) -> int:
        """Tokens that are kept now."""
        return self._most_tokens - self._room

    def renew(self, stamp: int) -> None:
        """Forgets everything where `stamp` is another than the last time: the weights have changed since."""
        if stamp != self._stamp:
            self._kept.clear()
            self._order.clear()
            self._room, self._stamp = self._most_tokens, stamp

    def find(self, prompt: Ids) -> Known:
        """The longest known beginning of a prompt, without its last id: that one is always read, for its logits."""
        at = bisect_left(self._order, prompt)
        near = self._order[max(0, at - 1) : at + 1]
        if not near:
            return NOTHING
        tokens, best = max((_in_common(ids, prompt), ids) for ids in near)
        return Known(max(0, min(tokens, len(prompt) - 1)), self._kept[best])

    def keep(self, ids: Ids, layers: Callable[[], Layers]) -> None:
        """Takes in what has been read of a sequence. A shorter one that it goes on from gives way to it.

        `layers` is asked only where there is something to keep.
        """
        if len(ids) > self._most_tokens or self._holds(ids):
            return
        at = bisect_left(self._order, ids)
        if at and ids[: len(self._order[at - 1])] == self._order[at - 1]:
            self._drop(self._order[at - 1])
        self.leave_room(len(ids))
        self._kept[ids] = layers()
        insort(self._order, ids)
        self._room -= len(ids)

    def leave_room(self, tokens: int) -> None:
        """Drops the oldest until this many tokens more would fit, or nothing is left."""
        while self._kept and tokens > self._room:
            self._drop(next(iter(self._kept)))

    def _holds(self, ids: Ids) -> bool:
        """All of it is known already, alone or as the beginning of another."""
        at = bisect_left(self._order, ids)
        return at < len(self._order) and self._order[at][: len(ids)] == ids

    def _drop(self, ids: Ids) -> None:
        del self._kept[ids]
        del self._order[bisect_left(self._order, ids)]
        self._room += len(ids)


def _in_common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids both begin with."""
    return next(compress(count(), map(ne, a, b)), min(len(a), len(b)))
