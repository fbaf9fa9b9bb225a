"""The haystack: sentences drawn from a small grammar, and needles among them."""

from __future__ import annotations

from random import Random

from skyrl_gym.envs.memory.lexicon import LEXICON

__all__ = ["haystack"]

_PARTS = ("people", "actions", "places", "times", "asides")


def haystack(random: Random, words: int, needles: list[str]) -> str:
    """`words` words of prose, the last sentence finished, in which the needles stand at random depths, in order."""
    sentences = _prose(random, words)
    slots = sorted(random.randint(0, len(sentences)) for _ in needles)
    for offset, (slot, needle) in enumerate(zip(slots, needles, strict=True)):
        sentences.insert(slot + offset, needle)
    return " ".join(sentences)


def _prose(random: Random, words: int) -> list[str]:
    sentences: list[str] = []
    count = 0
    while count < words:
        sentence = _sentence(random)
        count += len(sentence.split())
        sentences.append(f"{sentence[0].upper()}{sentence[1:]}.")
    return sentences


def _sentence(random: Random) -> str:
    who, does, where, when, aside = (random.choice(LEXICON[part]) for part in _PARTS)
    scene = f"{who} {does} {where}"
    return random.choice((f"{scene} {when}", f"{when}, {scene}", f"{aside}, and {scene}", aside))
