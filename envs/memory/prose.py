"""The haystack: sentences drawn from a small grammar, and needles among them."""

from __future__ import annotations

from random import Random

__all__ = ["haystack", "word_count"]

_PEOPLE = (
    "a farmer|the baker|an old teacher|the ferryman|a group of children|the postman|a tired traveller|the gardener|"
    "two fishermen|the innkeeper|a young painter|the night watchman|her cousin|the miller's daughter|a quiet stranger|"
    "the choir|his neighbours|the carpenter|a travelling musician|the schoolmaster"
).split("|")
_ACTIONS = (
    "walked along|rested near|looked across|waited beside|returned to|spoke about|swept|passed by|slept close to|"
    "drew a picture of|sang about|planted flowers around|dreamed of|lingered at|hurried past|remembered|pointed at|"
    "told a story about"
).split("|")
_PLACES = (
    "the old road|the empty square|the wooden gate|the stone wall|the green fields|the small station|the long pier|"
    "the village pond|the corner shop|the wide stairs|the school yard|the apple trees|the windy hill|the narrow lane|"
    "the chapel|the market stalls|the hay barn|the steep path"
).split("|")
_TIMES = (
    "at noon|in the rain|before sunset|on a cold morning|after the meal|all day long|without a word|as usual|"
    "during the festival|late in the evening|for an hour|in good spirits|once more|under a grey sky|with a lantern|"
    "when the bells rang"
).split("|")
_ASIDES = (
    "the air smelled of bread|nobody was in a hurry|the shutters were closed|a dog barked somewhere|"
    "the leaves had turned yellow|smoke rose from the chimneys|the water was calm|it had rained all week|"
    "the stars came out|the kettle was singing|snow lay on the roofs|the geese were loud"
).split("|")


def haystack(random: Random, words: int, needles: list[str]) -> str:
    """A text of at most `words` words in which the needles, in their order, stand at random depths.

    It falls short of `words` by less than one sentence, unless the needles alone are longer.
    """
    sentences = _prose(random, words - sum(map(word_count, needles)))
    slots = sorted(random.randint(0, len(sentences)) for _ in needles)
    for offset, (slot, needle) in enumerate(zip(slots, needles, strict=True)):
        sentences.insert(slot + offset, needle)
    return " ".join(sentences)


def word_count(text: str) -> int:
    """Words as this suite counts them: what white space separates."""
    return len(text.split())


def _prose(random: Random, words: int) -> list[str]:
    sentences: list[str] = []
    left = words
    while True:
        sentence = _sentence(random)
        left -= word_count(sentence)
        if left < 0:
            return sentences
        sentences.append(f"{sentence[0].upper()}{sentence[1:]}.")


def _sentence(random: Random) -> str:
    pick = random.choice
    scene = f"{pick(_PEOPLE)} {pick(_ACTIONS)} {pick(_PLACES)}"
    form = random.randrange(4)
    if form == 0:
        return f"{pick(_TIMES)}, {scene}"
    if form == 1:
        return f"{pick(_ASIDES)}, and {scene}"
    return f"{scene} {pick(_TIMES)}" if form == 2 else pick(_ASIDES)
