"""k-hop questions over a generated fictional encyclopedia: nothing in it can be known beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import NamedTuple

from skyrl_gym.envs.memory.problem import Problem
from skyrl_gym.envs.memory.words import ADJECTIVES, NOUNS, coined_word

__all__ = ["khop"]

MAX_HOPS = 4
WORDS_PER_ARTICLE = 30


class _Relation(NamedTuple):
    """A functional relation: `target` kind, how a question names it, how articles state it."""

    target: str
    phrase: str
    forms: tuple[str, ...]


_RELATIONS: Mapping[str, tuple[_Relation, ...]] = {
    "person": (
        _Relation("town", "the birthplace of {}", ("{s} was born in {o}.", "The birthplace of {s} is {o}.")),
        _Relation("person", "the teacher of {}", ("{s} learned the craft from {o}.", "The teacher of {s} was {o}.")),
        _Relation("company", "the employer of {}", ("{s} works for {o}.", "{o} employs {s}.")),
    ),
    "town": (
        _Relation("river", "the river of {}", ("{s} lies on {o}.", "Through {s} flows {o}.")),
        _Relation("person", "the mayor of {}", ("The mayor of {s} is {o}.", "{s} is governed by {o}.")),
    ),
    "company": (
        _Relation("person", "the founder of {}", ("{o} founded {s}.", "{s} was founded by {o}.")),
        _Relation("town", "the seat of {}", ("{s} has its seat in {o}.", "The offices of {s} are in {o}.")),
    ),
    "river": (_Relation("town", "the town at the mouth of {}", ("{s} reaches the sea at {o}.", "{s} ends at {o}.")),),
}
_KINDS = tuple(_RELATIONS)


class _World(NamedTuple):
    names: Mapping[str, list[str]]
    facts: Mapping[tuple[str, str], str]  # (subject, phrase) -> object


def khop(rng: Random, words: int) -> Problem:
    """A question of one to four hops whose articles, among distracting ones, make up the document."""
    world = _make_world(rng, max(2, words // WORDS_PER_ARTICLE // len(_KINDS)))
    hops = rng.randint(1, MAX_HOPS)
    kind = rng.choice(_KINDS)
    subject = start = rng.choice(world.names[kind])
    phrases: list[str] = []
    for _ in range(hops):
        relation = rng.choice(_RELATIONS[kind])
        phrases.append(relation.phrase)
        subject, kind = world.facts[subject, relation.phrase], relation.target
    asked = start
    for phrase in phrases:
        asked = phrase.format(asked)
    return Problem(_write(rng, world), f"What is the name of {asked}?", (_aliases(subject),))


def _make_world(rng: Random, per_kind: int) -> _World:
    taken: set[str] = set()
    names = {kind: [_name(rng, kind, taken) for _ in range(per_kind)] for kind in _KINDS}
    facts = {}
    for kind, members in names.items():
        for subject in members:
            for relation in _RELATIONS[kind]:
                others = [name for name in names[relation.target] if name != subject]
                facts[subject, relation.phrase] = rng.choice(others)
    return _World(names, facts)


def _name(rng: Random, kind: str, taken: set[str]) -> str:
    while True:
        word = coined_word(rng).capitalize()
        name = {
            "person": f"{coined_word(rng, 2).capitalize()} {word}",
            "town": word,
            "company": f"{word} {rng.choice(ADJECTIVES).capitalize()} {rng.choice(NOUNS).capitalize()}s",
            "river": f"the River {word}",
        }[kind]
        if name not in taken:
            taken.add(name)
            return name


def _aliases(name: str) -> tuple[str, ...]:
    return (name, name.removeprefix("the ").removeprefix("River ")) if name.startswith("the River ") else (name,)


def _write(rng: Random, world: _World) -> str:
    articles = [_article(rng, world, kind, name) for kind, members in world.names.items() for name in members]
    rng.shuffle(articles)
    return " ".join(articles)


def _article(rng: Random, world: _World, kind: str, name: str) -> str:
    sentences = [
        rng.choice(relation.forms).format(s=name, o=world.facts[name, relation.phrase]) for relation in _RELATIONS[kind]
    ]
    rng.shuffle(sentences)
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)
