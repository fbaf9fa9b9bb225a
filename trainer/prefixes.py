"""Sequences that begin alike, in one pass that reads what they share once.

The samples of a pass are laid out as a tree in one row: a token is there once for all samples that have the same
tokens up to it. Each token attends to the tokens on its own path, at the position that it has there, so hidden states
are those of the samples one by one, and so are gradients: what a shared token contributes to several samples flows
back through it once, summed. A token before two different continuations that are in the loss stands there twice, for
it is scored on one continuation only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from skyrl_gym.trainer.samples import Sample

__all__ = ["WORTH_SHARING", "Tree", "can_share", "pack_shared"]

# Architectures of which a test shows that they take such a mask: plain attention, positions given from outside.
KNOWN = frozenset({"llama", "mistral", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3", "granite", "olmo2"})
UNSCORED = -100
LEAST_SHARED = 0.25  # of a sample, with the one before it in a pass: below, a pass of its own costs less attention
WORTH_SHARING = 0.2  # of a batch's tokens; below, passes by length with their causal attention are as fast
MOST_NODES = 8_192  # of a pass; its mask has the square of it

Node = tuple[int, int]  # a token, and the one that it is scored on (UNSCORED for none)


@dataclass(frozen=True)
class Tree:
    """Samples in one row of tokens: ids, labels, positions and the end of each token's subtree (all of one length).

    `places` has for each sample the indices of the tokens that predict its completion's, one by one.
    """

    ids: list[int]
    labels: list[int]
    positions: list[int]
    ends: list[int]
    places: list[list[int]]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Tree:
        """The tree of some samples, in any order."""
        tree = cls([], [], [], [], [[] for _ in samples])
        path: list[int] = []  # where the nodes of the sample before stand
        for number, nodes, shared in _side_by_side(samples):
            tree._close(path[shared:])
            path = path[:shared] + [tree._add(node, shared + i) for i, node in enumerate(nodes[shared:])]
            tree.places[number].extend(path[len(samples[number].prompt_ids) - 1 :])
        tree._close(path)
        return tree

    def tensors(self, device: torch.device) -> dict[str, torch.Tensor]:
        """What a causal language model takes, one row; `places` is (samples, longest completion)."""
        ends = torch.tensor(self.ends, device=device)
        order = torch.arange(len(self.ids), device=device)
        on_path = (order[None, :] <= order[:, None]) & (order[:, None] < ends[None, :])
        width = max(map(len, self.places))
        places = [[*found, *[0] * (width - len(found))] for found in self.places]
        return {
            "input_ids": torch.tensor([self.ids], device=device),
            "shift_labels": torch.tensor([self.labels], device=device),
            "position_ids": torch.tensor([self.positions], device=device),
            "attention_mask": on_path[None, None],
            "places": torch.tensor(places, device=device),
        }

    def _add(self, node: Node, position: int) -> int:
        self.ids.append(node[0])
        self.labels.append(node[1])
        self.positions.append(position)
        self.ends.append(-1)
        return len(self.ids) - 1

    def _close(self, path: Sequence[int]) -> None:
        for index in path:
            self.ends[index] = len(self.ids)


def can_share(model: Any) -> bool:
    """The model is of a known architecture, and its attention takes any mask and is full in every layer."""
    config = model.config.get_text_config()
    layers = getattr(config, "layer_types", None)
    full = set(layers) == {"full_attention"} if layers else getattr(config, "sliding_window", None) is None
    return config.model_type in KNOWN and config._attn_implementation == "sdpa" and full


def pack_shared(
    samples: Sequence[Sample], max_rows: int, max_tokens: int | None = None
) -> tuple[list[list[Sample]], float]:
    """Samples that begin alike together, as `pack` otherwise does by length; `max_tokens` counts shared ones once.

    Also gives the share of all tokens, from 0 to 1, that needs no reading when all that is common is read once.
    """
    budget = min(max_tokens or MOST_NODES, MOST_NODES)
    chunks: list[list[Sample]] = []
    size = total = saved = 0
    for number, nodes, shared in _side_by_side(samples):
        sample, new = samples[number], len(nodes) - shared
        total += len(nodes)
        saved += shared
        if chunks and len(chunks[-1]) < max_rows and shared >= LEAST_SHARED * len(nodes) and size + new <= budget:
            chunks[-1].append(sample)
            size += new
        else:
            chunks.append([sample])
            size = len(nodes)
    return chunks, saved / total if total else 0.0


def _side_by_side(samples: Sequence[Sample]) -> Iterator[tuple[int, list[Node], int]]:
    """In an order in which those that begin alike follow each other: number, nodes, and how many of them are those
    of the one before."""
    paths = [_nodes(sample) for sample in samples]
    held: list[Node] = []
    for number in sorted(range(len(samples)), key=paths.__getitem__):
        yield number, paths[number], _common(held, paths[number])
        held = paths[number]


def _nodes(sample: Sample) -> list[Node]:
    """All tokens but the last, which predicts nothing, each with what it is scored on."""
    ids = [*sample.prompt_ids, *sample.completion_ids]
    scored = [*[0] * (len(sample.prompt_ids) - 1), *sample.mask]
    return [(ids[i], ids[i + 1] if scored[i] else UNSCORED) for i in range(len(ids) - 1)]


def _common(a: Sequence[Node], b: Sequence[Node]) -> int:
    """How long the common beginning is."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
