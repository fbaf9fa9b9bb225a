"""A generated encyclopedia of people, towns, companies, rivers and events: nothing in it can be known beforehand.

Names come in pairs that share a word (Upper and Lower Kelomi), so that each article has a near-duplicate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle, islice, product
from random import Random
from typing import NamedTuple

from skyrl_gym.envs.memory.draws import Draws, coined_word
from skyrl_gym.envs.memory.lexicon import LEXICON

__all__ = ["RELATIONS", "Fact", "Relation", "aliases", "make_facts", "write"]

WORDS_PER_ARTICLE = 25  # about


class Relation(NamedTuple):
    """What each entity of a kind has one of. `phrase` asks for it, `inverse` for those that have it."""

    kind: str
    target: str
    phrase: str
    inverse: str
    forms: tuple[str, ...]


class Fact(NamedTuple):
    """One sentence of the encyclopedia."""

    subject: str
    relation: Relation
    object: str


RELATIONS = (
    Relation(
        "person",
        "town",
        "the birthplace of {}",
        "the person born in {}",
        ("{s} was born in {o}.", "{s} grew up in {o}, the place of birth.", "{o} is the birthplace of {s}."),
    ),
    Relation(
        "person",
        "person",
        "the teacher of {}",
        "the pupil of {}",
        ("{s} learned the craft from {o}.", "The teacher of {s} was {o}.", "{o} taught {s}."),
    ),
    Relation(
        "person",
        "company",
        "the employer of {}",
        "the person who works for {}",
        ("{s} works for {o}.", "{o} employs {s}.", "{s} earns a living at {o}."),
    ),
    Relation(
        "town",
        "river",
        "the river of {}",
        "the town that lies on the {}",
        ("{s} lies on the {o}.", "Through {s} flows the {o}.", "{s} was built on the banks of the {o}."),
    ),
    Relation(
        "town",
        "person",
        "the mayor of {}",
        "the town whose mayor is {}",
        ("The mayor of {s} is {o}.", "{s} elected {o} as its mayor.", "{o} governs {s} as mayor."),
    ),
    Relation(
        "company",
        "person",
        "the founder of {}",
        "the company founded by {}",
        ("{o} founded {s}.", "{s} was founded by {o}.", "{s} began as the workshop of {o}, its founder."),
    ),
    Relation(
        "company",
        "town",
        "the home town of {}",
        "the company with its seat in {}",
        ("{s} has its seat in {o}.", "The head office of {s} is in {o}.", "{s} is run from {o}."),
    ),
    Relation(
        "river",
        "town",
        "the town at the mouth of the {}",
        "the river that reaches the sea at {}",
        ("The {s} reaches the sea at {o}.", "At {o} the {s} ends in the sea.", "The mouth of the {s} is at {o}."),
    ),
    Relation(
        "river",
        "person",
        "the person who first mapped the {}",
        "the river first mapped by {}",
        ("The {s} was first mapped by {o}.", "{o} drew the first map of the {s}.", "The first to map the {s} was {o}."),
    ),
    Relation(
        "event",
        "town",
        "the town that hosts the {}",
        "the event hosted by {}",
        ("The {s} is held in {o}.", "{o} hosts the {s}.", "Each year the {s} takes place in {o}."),
    ),
    Relation(
        "event",
        "company",
        "the sponsor of the {}",
        "the event sponsored by {}",
        ("The {s} is paid for by {o}.", "{o} sponsors the {s}.", "The sponsor of the {s} is {o}."),
    ),
)

_OPENINGS: Mapping[str, tuple[str, ...]] = {
    "person": ("{s} is a well-known figure.", "{s} keeps a diary.", "Little is written about {s}."),
    "town": ("{s} is a town.", "The streets of {s} are narrow.", "{s} has a library and two schools."),
    "company": ("{s} is a company.", "{s} is known for its quality.", "The workshops of {s} are open to visitors."),
    "river": ("The {s} is a river.", "The {s} floods in spring.", "Boats sail on the {s}."),
    "event": ("The {s} is a yearly event.", "The {s} draws many visitors.", "Songs are sung at the {s}."),
}
_QUALIFIERS: Mapping[str, tuple[str, ...]] = {
    "person": tuple(first + last for first, last in product(LEXICON["syllables"], repeat=2)),
    "town": ("Upper", "Lower", "North", "South", "Old", "New"),
    "company": ("Lanterns", "Kettles", "Clocks", "Carpets", "Bricks", "Ropes"),
    "river": ("Great", "Little", "Black", "White", "Long", "Slow"),
    "event": ("Spring", "Summer", "Autumn", "Winter", "Harvest", "Lantern"),
}
_NAMES: Mapping[str, str] = {
    "person": "{1} {0}",
    "town": "{1} {0}",
    "company": "{0} {1}",
    "river": "{1} {0} River",
    "event": "{0} {1} Fair",
}
_ALIASES: Mapping[str, Callable[[str], str]] = {
    "person": lambda name: " ".join(reversed(name.split())),
    "town": lambda name: f"town of {name}",
    "company": lambda name: f"{name} Company",
    "river": lambda name: name.removesuffix(" River"),
    "event": lambda name: name.removesuffix(" Fair"),
}


def aliases(kind: str, name: str) -> tuple[str, ...]:
    """The ways in which an answer may give a name; no other entity has one of them."""
    return name, _ALIASES[kind](name)


def make_facts(draws: Draws, words: int) -> tuple[Fact, ...]:
    """The facts of an encyclopedia of about `words` words, and of two entities a kind at least."""
    kinds = tuple(_NAMES)
    names: dict[str, list[str]] = {kind: [] for kind in kinds}
    for kind in islice(cycle(kinds), max(len(kinds), words // (2 * WORDS_PER_ARTICLE))):
        names[kind] += _namesakes(draws, kind)
    return tuple(
        Fact(subject, relation, _other(draws.random, names[relation.target], subject))
        for relation in RELATIONS
        for subject in names[relation.kind]
    )


def write(random: Random, facts: tuple[Fact, ...]) -> str:
    """One article an entity, in random order; each sentence names what it speaks of."""
    articles: dict[str, list[str]] = {}
    for subject, relation, found in facts:
        opening = random.choice(_OPENINGS[relation.kind]).format(s=subject)
        article = articles.setdefault(subject, [opening])
        article.insert(random.randint(1, len(article)), random.choice(relation.forms).format(s=subject, o=found))
    shuffled = random.sample(list(articles.values()), len(articles))
    return "\n\n".join(" ".join(article) for article in shuffled)


def _namesakes(draws: Draws, kind: str) -> list[str]:
    shared = draws.fresh(lambda random: coined_word(random, random.randint(2, 4)))
    own = draws.random.sample(_QUALIFIERS[kind], 2)
    return [_NAMES[kind].format(shared.capitalize(), word.capitalize()) for word in own]


def _other(random: Random, names: list[str], subject: str) -> str:
    while (name := random.choice(names)) == subject:
        pass
    return name
