"""Scores: one answer by exact match, several by F1 over the set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyrl_gym.envs.memory.scoring import exact_match, normalise, score, set_scores, token_f1

THREE = (("1201",), ("4410",), ("7788",))


@pytest.mark.parametrize(
    ("text", "plain"),
    [("The Great Bamo River.", "great bamo river"), ("  A  b\n an C! ", "b c"), ("4,821", "4821"), ("the", "")],
)
def test_normalising_is_that_of_squad(text: str, plain: str) -> None:
    assert normalise(text) == plain


@given(st.text())
def test_normalising_twice_changes_nothing_more_than_once_did(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@pytest.mark.parametrize(
    ("answer", "reward"),
    [("Paris", 1), ("the city of paris.", 1), ("London", 0), ("It is Paris", 0), ("", 0), ("the", 0)],
)
def test_one_answer_is_matched_exactly_against_every_alias(answer: str, reward: float) -> None:
    assert score(answer, (("Paris", "City of Paris"),))[0] == reward


def test_an_answer_of_no_words_matches_nothing_not_even_an_alias_of_no_words() -> None:
    assert exact_match("", ["the"]) == 0


def test_token_f1_is_two_hits_over_both_lengths() -> None:
    assert token_f1("great river", ["Great Bamo River"]) == pytest.approx(2 * 2 / (2 + 3))
    assert token_f1("lake", ["Great Bamo River"]) == 0


@pytest.mark.parametrize(
    "answer", ["1201, 4410, 7788", "7788; 1201 and 4410", "1201\n4410\n7788", "4410, 1201, and 7788."]
)
def test_a_set_may_be_listed_in_any_order_and_common_ways(answer: str) -> None:
    assert set_scores(answer, THREE) == {"exact_match": 1.0, "f1": 1.0, "recall": 1.0}


def test_a_part_of_a_set_earns_its_f1() -> None:
    scores = set_scores("1201, 4410", THREE)
    assert scores["f1"] == pytest.approx(0.8)
    assert scores["recall"] == pytest.approx(2 / 3)
    assert scores["exact_match"] == 0


def test_listing_everything_finds_all_and_earns_little() -> None:
    scores = set_scores(", ".join(map(str, range(1_000, 10_000))), THREE)
    assert scores["recall"] == 1
    assert scores["f1"] < 0.001


def test_naming_one_thing_in_two_ways_neither_helps_nor_hurts() -> None:
    wanted = (("Ann", "Ms Ann"), ("Bob",))
    assert set_scores("Ann, Ms Ann, Bob", wanted)["f1"] == 1
    assert set_scores("Ann, Ms Ann", wanted)["f1"] == set_scores("Ann", wanted)["f1"]


def test_a_name_that_holds_and_is_one_item() -> None:
    assert set_scores("Trinidad and Tobago, Cuba", (("Cuba",), ("Trinidad and Tobago",)))["f1"] == 1
    assert set_scores("Trinidad, Tobago, Cuba", (("Cuba",), ("Trinidad and Tobago",)))["f1"] < 1


@given(st.text(), st.lists(st.lists(st.text(), min_size=1, max_size=3), min_size=1, max_size=4))
def test_scores_are_shares_and_a_full_reward_is_an_exact_match(answer: str, wanted: list[list[str]]) -> None:
    reward, scores = score(answer, wanted)
    assert 0 <= reward <= 1
    assert all(0 <= value <= 1 for value in scores.values())
    assert (reward == 1) == (scores["exact_match"] == 1)
