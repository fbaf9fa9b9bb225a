"""k-hop questions over the fictional encyclopedia, each with one answer by graph search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from skyrl_gym.envs.memory.draws import Draws
from skyrl_gym.envs.memory.encyclopedia import Fact, aliases, make_facts, write
from skyrl_gym.envs.memory.problem import Problem

__all__ = ["MAX_HOPS", "Entity", "Graph", "ask", "follow", "graph_of", "khop"]

MAX_HOPS = 4


class Entity(NamedTuple):
    """A node of the encyclopedia."""

    kind: str
    name: str


Graph: TypeAlias = Mapping[Entity, Mapping[str, Sequence[Entity]]]
"""What stands in which relation to an entity, by the phrase that asks for it."""


def khop(draws: Draws, words: int, hops: int) -> Problem:
    """A question of `hops` hops; the document is all of the encyclopedia."""
    while True:
        facts = make_facts(draws, words)
        graph = graph_of(facts)
        for start in draws.random.sample(list(graph), len(graph)):
            walk = _walk(draws, graph, start, hops)
            if walk is None:
                continue
            (answer,) = follow(graph, start, walk)
            question = f"What is the name of {ask(start.name, walk)}?"
            return Problem(write(draws.random, facts), question, (aliases(*answer),))


def graph_of(facts: Iterable[Fact]) -> Graph:
    """Both directions of every fact."""
    graph: dict[Entity, dict[str, list[Entity]]] = {}
    for subject, relation, found in facts:
        source, target = Entity(relation.kind, subject), Entity(relation.target, found)
        graph.setdefault(source, {}).setdefault(relation.phrase, []).append(target)
        graph.setdefault(target, {}).setdefault(relation.inverse, []).append(source)
    return graph


def follow(graph: Graph, start: Entity, phrases: Sequence[str]) -> set[Entity]:
    """Everything that a question may mean."""
    reached = {start}
    for phrase in phrases:
        reached = {entity for source in reached for entity in graph[source].get(phrase, ())}
    return reached


def ask(name: str, phrases: Sequence[str]) -> str:
    """The phrases nested around a name, the first innermost."""
    for phrase in phrases:
        # Some names need the article that all phrases have: "the mouth of the [the river of] ...".
        name = phrase.format(name).replace("the the ", "the ")
    return name


def _walk(draws: Draws, graph: Graph, start: Entity, hops: int) -> list[str] | None:
    """Phrases that lead from `start` to one entity each, none of them met before; None if there are none."""
    visited = [start]

    def extend() -> list[str] | None:
        if len(visited) > hops:
            return []
        steps = [(phrase, found[0]) for phrase, found in graph[visited[-1]].items() if len(found) == 1]
        for phrase, entity in draws.random.sample(steps, len(steps)):
            if entity not in visited:
                visited.append(entity)
                rest = extend()
                if rest is not None:
                    return [phrase, *rest]
                visited.pop()
        return None

    return extend()
