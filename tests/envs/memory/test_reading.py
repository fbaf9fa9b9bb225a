"""Sections and the bound of the memory."""

from hypothesis import given
from hypothesis import strategies as st

from skyrl_gym.envs.memory.reading import CHARACTERS_PER_WORD, clip, sections

TEXTS = st.lists(st.sampled_from(["a", "word", "end.", "Why?", '"So."', "...", " ", "\n\n", "\t", "é"])).map(" ".join)
SIZES = st.integers(1, 8)


@given(TEXTS | st.text(), SIZES)
def test_sections_joined_are_the_document(document: str, words: int) -> None:
    assert "".join(sections(document, words)) == document


@given(TEXTS, SIZES)
def test_no_section_is_empty_or_too_long(document: str, words: int) -> None:
    lengths = [len(section.split()) for section in sections(document, words)]
    assert max(lengths) <= words
    assert min(lengths) > 0 or not document.split()


def test_a_section_ends_with_a_sentence_where_one_fits() -> None:
    assert sections("One two. Three four five. Six.", 4) == ("One two. ", "Three four five. Six.")


def test_a_long_sentence_is_cut_between_words() -> None:
    assert sections("one two three four five", 2) == ("one two ", "three four ", "five")


def test_dots_alone_end_no_sentence() -> None:
    assert sections("... so ... on", 3) == ("... so ... ", "on")


def test_an_empty_document_is_one_empty_section() -> None:
    assert sections("", 5) == ("",)


@given(st.text(), SIZES)
def test_a_memory_never_exceeds_its_bound(memory: str, words: int) -> None:
    kept = clip(memory, words)
    assert len(kept.split()) <= words
    assert len(kept) <= words * CHARACTERS_PER_WORD
    assert memory.strip().startswith(kept)
    assert clip(kept, words) == kept


def test_a_memory_within_its_bound_is_kept_as_it_is() -> None:
    assert clip("  boat:\n  52 seats ", 3) == "boat:\n  52 seats"


def test_leaving_out_the_spaces_gains_nothing() -> None:
    assert len(clip("word_" * 1_000, 10)) == 10 * CHARACTERS_PER_WORD
