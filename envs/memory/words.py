"""Words and prose drawn from a seed: the haystack."""

from __future__ import annotations

from random import Random

__all__ = ["ADJECTIVES", "NOUNS", "coined_word", "insert_at_depths", "prose"]

ADJECTIVES = (
    "amber ancient bitter bold brisk bronze calm clever copper crimson curious dusty eager early faded fierce gentle "
    "golden hidden hollow humble ivory jolly lively lonely lunar mellow misty modest narrow noble olive pale patient "
    "polar proud quiet rapid rustic scarlet shady silent silver solar steady stormy swift tidy velvet wild"
).split()
NOUNS = (
    "anchor arrow barn basin beacon bridge canyon castle cedar comet compass copper falcon ferry forest garden glacier "
    "harbor hill island kettle ladder lantern lighthouse mango market meadow mill mirror orchard otter palace parrot "
    "pepper piano pillar quarry raven river saddle signal sparrow stable statue temple tower tunnel turtle valley violin"
).split()
_SUBJECTS = (
    "a farmer|the baker|an old teacher|the ferryman|a group of children|the postman|a tired traveller|the gardener|"
    "two fishermen|the innkeeper|a young painter|the night watchman"
).split("|")
_VERBS = (
    "walked along|rested near|looked across|waited beside|returned to|spoke about|cleaned|passed by|slept close to|"
    "drew a picture of|sang about|planted flowers around"
).split("|")
_PLACES = (
    "the old road|the empty square|the wooden gate|the stone wall|the green fields|the small station|the long pier|"
    "the village pond|the corner shop|the wide stairs|the school yard|the apple trees"
).split("|")
_TIMES = (
    "at noon|in the rain|before sunset|on a cold morning|after the meal|all day long|without a word|as usual|"
    "during the festival|late in the evening|for an hour|in good spirits"
).split("|")
_SYLLABLES = "ba be bi bo da de di do fa fe ga go ha ka ke ki ko la le li lo ma me mi mo na ne no pa po ra re ri ro sa ta".split()


def prose(rng: Random, words: int) -> list[str]:
    """Sentences of about this many words in all; they state nothing that a question asks for."""
    sentences: list[str] = []
    count = 0
    while count < words:
        parts = [rng.choice(_SUBJECTS), rng.choice(_VERBS), rng.choice(_PLACES), rng.choice(_TIMES)]
        sentence = " ".join(parts)
        sentences.append(f"{sentence[0].upper()}{sentence[1:]}.")
        count += len(sentence.split())
    return sentences


def coined_word(rng: Random, syllables: int = 3) -> str:
    """A word that means nothing."""
    return "".join(rng.choice(_SYLLABLES) for _ in range(syllables))


def insert_at_depths(rng: Random, haystack: list[str], needles: list[str]) -> str:
    """One text in which the needles, in their order, stand at random depths of the haystack."""
    slots = sorted(rng.randint(0, len(haystack)) for _ in needles)
    for offset, (slot, needle) in enumerate(zip(slots, needles, strict=True)):
        haystack.insert(slot + offset, needle)
    return " ".join(haystack)
