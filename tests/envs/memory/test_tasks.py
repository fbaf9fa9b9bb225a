"""Rows: small, reproducible from themselves alone, disjoint between splits, and answerable from the text."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyrl_gym.envs.memory.draws import Draws, split_of
from skyrl_gym.envs.memory.encyclopedia import RELATIONS, Fact
from skyrl_gym.envs.memory.env import MemoryEnv
from skyrl_gym.envs.memory.families import FAMILIES
from skyrl_gym.envs.memory.khop import Entity, Graph, follow, graph_of
from skyrl_gym.envs.memory.needles import VALUES
from skyrl_gym.envs.memory.problem import Problem
from skyrl_gym.envs.memory.reading import sections
from skyrl_gym.envs.memory.scoring import normalise, score
from skyrl_gym.envs.memory.tasks import read_problem
from skyrl_gym.errors import ConfigError, TaskError
from skyrl_gym.tasks import Task

SEEDS = st.integers(0, 10_000)
SPLITS = st.sampled_from(["train", "test"])


def problem_of(family: str, seed: int, words: int = 300, split: str = "train", **option: Any) -> Problem:
    row = {"generator": 1, "family": family, "split": split, "seed": seed, "document_words": words, **option}
    return read_problem(Task.from_row(row))


# ---- rows


@settings(max_examples=60, deadline=None)
@given(data=st.data(), index=SEEDS)
def test_a_row_is_small_json_and_all_that_a_document_needs(data: Any, index: int, settings_of_envs: Any) -> None:
    chosen = data.draw(settings_of_envs)
    env = MemoryEnv(**chosen, task_count=10_001)
    task = env.tasks[index]
    text = json.dumps(dict(task.data))
    assert len(text) < 200
    assert task.id == task.hash
    again = Task.from_row(json.loads(text))
    assert again.hash == task.hash
    problem = read_problem(again)
    assert problem == read_problem(task)
    assert "".join(sections(problem.document, env.chunk_words)) == problem.document


def test_a_row_gives_the_same_document_in_another_process_with_another_hash_seed() -> None:
    code = (
        "import json, hashlib\nfrom skyrl_gym.envs.memory.env import MemoryEnv\n"
        "from skyrl_gym.envs.memory.tasks import read_problem\n"
        "tasks = [t for s in ('train', 'test') for t in MemoryEnv(split=s, document_words=400).tasks.take(14)]\n"
        "found = [[t.hash, hashlib.sha256(repr(read_problem(t)).encode()).hexdigest()] for t in tasks]\n"
        "print(json.dumps(found))"
    )
    seen = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True, env=environment)
        seen.append(json.loads(ran.stdout))
    assert seen[0] == seen[1]
    assert len({task for task, _ in seen[0]}) == len({text for _, text in seen[0]}) == 28


def test_splits_share_no_key_value_or_name() -> None:
    drawn: dict[str, set[str]] = {"train": set(), "test": set()}
    for split, texts in drawn.items():
        draws = Draws(split, "a seed")
        makers = [kind.make for kind in VALUES.values()]
        texts |= {draws.fresh(make) for make in makers for _ in range(200)}
        texts |= set(draws.coined(200))
        assert {split_of(text) for text in texts} == {split}
    assert not drawn["train"] & drawn["test"]


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, other=SEEDS, family=st.sampled_from(sorted(set(FAMILIES) - {"khop"})))
def test_no_answer_of_one_split_is_an_answer_of_the_other(seed: int, other: int, family: str) -> None:
    option = {"values": "number"} if FAMILIES[family].option else {}
    here = problem_of(family, seed, split="train", **option)
    there = problem_of(family, other, split="test", **option)
    assert not {a for group in here.answers for a in group} & {a for group in there.answers for a in group}


def test_an_exhausted_pool_says_so() -> None:
    draws = Draws("train", "a seed")
    with pytest.raises(ConfigError, match="set a smaller document_words"):
        for _ in range(10):
            draws.fresh(lambda random: str(random.randrange(3)))


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"document": "x", "question": "y"}, "field 'answers' is missing"),
        ({"document": 1, "question": "y", "answers": ["z"]}, "document and question are texts"),
        ({"document": "x", "question": "y", "answers": "z"}, "answers is a list of texts"),
        ({"document": "x", "question": "y", "answers": []}, "answers is a list of texts"),
        ({"document": "x", "question": "y", "answers": [["z"], []]}, "answers is a list of texts"),
        ({"document": "x", "question": "y", "answers": [7]}, "answers is a list of texts"),
        ({"generator": 0}, "made by generator 0; this version has generator 1"),
        ({"generator": 1, "family": "no", "split": "train", "seed": 1, "document_words": 9}, "no such family"),
        ({"generator": 1, "family": "khop", "split": "train", "seed": 1, "document_words": 9}, "'hops' is missing"),
        ({"reward_model": {}, "context": "x"}, "not as in MemAgent's rows"),
    ],
)
def test_a_row_that_cannot_be_read_says_what_is_wrong(row: dict[str, Any], text: str) -> None:
    with pytest.raises(TaskError, match=text):
        read_problem(Task.from_row(row))


def test_memagent_rows_are_read_as_they_are() -> None:
    row = {
        "data_source": "hotpotqa",
        "prompt": [{"role": "user", "content": "Who wrote it?"}],
        "context": "Document 1:\nA book\nAnn wrote it.",
        "reward_model": {"style": "rule", "ground_truth": ["Ann", "Ms Ann"]},
    }
    assert read_problem(Task.from_row(row)) == Problem(row["context"], "Who wrote it?", (("Ann", "Ms Ann"),))


# ---- documents: an independent reader finds the answer in the text


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, words=st.integers(1, 400), values=st.sampled_from(sorted(VALUES)), split=SPLITS)
@pytest.mark.parametrize("family", ["niah_single", "niah_multikey", "niah_multivalue"])
def test_needles_are_found_by_their_key(family: str, seed: int, words: int, values: str, split: str) -> None:
    problem = problem_of(family, seed, words, split, values=values)
    asked = re.search(r"of the (\w+ \w+)\?", problem.question)
    assert asked is not None
    found = re.findall(rf"The \w+ of the {asked[1]} is ([\w-]+)\.", problem.document)
    assert score(", ".join(found), problem.answers)[0] == 1.0
    others = set(re.findall(r"The \w+ of the (\w+ \w+) is", problem.document)) - {asked[1]}
    assert len(others) == {"niah_single": 0, "niah_multikey": 3, "niah_multivalue": 1}[family]


def test_needles_lie_at_every_depth() -> None:
    depths = Counter[int]()
    for seed in range(200):
        problem = problem_of("niah_single", seed, values="number")
        depths[10 * problem.document.index(problem.answers[0][0]) // len(problem.document)] += 1
    assert len(depths) == 10
    assert max(depths.values()) < 50


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, words=st.integers(1, 400), split=SPLITS)
def test_variables_are_traced_in_one_pass(seed: int, words: int, split: str) -> None:
    problem = problem_of("variable_tracking", seed, words, split)
    held: dict[str, str] = {}
    for name, value in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", problem.document):
        held[name] = held.get(value, value)
    asked = re.search(r"value (\d+)\?", problem.question)
    assert asked is not None
    found = [name for name, value in held.items() if value == asked[1]]
    assert score(", ".join(found), problem.answers)[0] == 1.0
    assert len(set(held.values())) == 2


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, words=st.integers(1, 600), split=SPLITS)
@pytest.mark.parametrize("family", ["common_words", "frequent_words"])
def test_counting_finds_the_words_without_a_tie(family: str, seed: int, words: int, split: str) -> None:
    problem = problem_of(family, seed, words, split)
    counts = Counter(problem.document.split())
    if family == "frequent_words":
        assert counts.most_common(1)[0][0] == "..."
        del counts["..."]
    ranked = counts.most_common()
    assert score(", ".join(word for word, _ in ranked[:3]), problem.answers)[0] == 1.0
    assert ranked[2][1] > ranked[3][1]


def facts_in(document: str) -> list[Fact]:
    """What a reader who knows the sentences' forms takes from the text."""
    name = r"((?:[A-Z]\w+ ?)+)"
    found = []
    for sentence in re.split(r"(?<=\.)\s+", document):
        for relation in RELATIONS:
            for form in relation.forms:
                pattern = re.escape(form).replace(r"\{s\}", f"(?P<s>{name})").replace(r"\{o\}", f"(?P<o>{name})")
                if match := re.fullmatch(pattern, sentence):
                    found.append(Fact(match["s"], relation, match["o"]))
    return found


def readings(graph: Graph, text: str) -> Iterator[tuple[Entity, list[str]]]:
    """Every way to read "the mayor of the town that hosts the ...": an entity and the phrases around it."""
    yield from ((entity, []) for entity in graph if entity.name == text.removeprefix("the "))
    for phrase in {p for relation in RELATIONS for p in (relation.phrase, relation.inverse)}:
        opening = phrase.removesuffix("{}")
        if text.startswith(opening):
            inner = text.removeprefix(opening)
            inner = f"the {inner}" if opening.endswith(" the ") else inner
            yield from ((entity, [*path, phrase]) for entity, path in readings(graph, inner))


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, words=st.integers(1, 800), hops=st.integers(1, 4), split=SPLITS)
def test_a_khop_question_has_one_answer_by_search_in_the_text(seed: int, words: int, hops: int, split: str) -> None:
    problem = problem_of("khop", seed, words, split, hops=hops)
    graph = graph_of(facts_in(problem.document))
    asked = problem.question.removeprefix("What is the name of ").removesuffix("?")
    ((start, path),) = readings(graph, asked)
    assert len(path) == hops
    assert {entity.name for entity in follow(graph, start, path)} == {problem.answers[0][0]}
    met = [start, *(next(iter(follow(graph, start, path[: i + 1]))) for i in range(hops))]
    assert len(set(met)) == hops + 1, "the walk comes back to where it was"


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, hops=st.integers(1, 4), split=SPLITS)
def test_a_khop_answer_is_not_in_its_question_and_nobody_else_s_name(seed: int, hops: int, split: str) -> None:
    problem = problem_of("khop", seed, 300, split, hops=hops)
    names = {fact.subject for fact in facts_in(problem.document)}
    forms = {normalise(alias) for alias in problem.answers[0]}
    assert len(forms) == 2
    assert not any(form in normalise(problem.question) for form in forms)
    assert sum(normalise(name) in forms for name in names) == 1


def test_every_entity_has_a_namesake() -> None:
    problem = problem_of("khop", 5, 500, hops=2)
    people = {fact.subject for fact in facts_in(problem.document) if fact.relation.kind == "person"}
    surnames = Counter(name.split()[1] for name in people)
    assert len(people) >= 4
    assert set(surnames.values()) == {2}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_document_has_about_the_length_asked_for(family: str) -> None:
    option = {"values": {"values": "number"}, "hops": {"hops": 2}, None: {}}[FAMILIES[family].option]
    for words in (400, 2_000):
        length = len(problem_of(family, 3, words, **option).document.split())
        assert 0.85 * words <= length <= 1.2 * words


@pytest.mark.parametrize("family", ["khop", "common_words", "frequent_words", "niah_single"])
def test_a_long_document_runs_out_of_no_names(family: str) -> None:
    option = {"values": {"values": "number"}, "hops": {"hops": 4}, None: {}}[FAMILIES[family].option]
    assert len(problem_of(family, 3, 100_000, "test", **option).document.split()) > 85_000
