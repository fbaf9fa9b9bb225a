"""How often the parts of identifiers stand in which file, and which files that makes the best."""

import re

from hypothesis import given
from hypothesis import strategies as st

from skyrl_gym.tools.code_search.bm25 import bm25
from skyrl_gym.tools.code_search.facts import FileFacts
from skyrl_gym.tools.code_search.table import Index, Source, Table
from skyrl_gym.tools.code_search.words import Words, subwords

WORDS = st.sampled_from(("HTTPServer", "http_port", "port2", "serverPort", "PORT", "x", "42", "_", "test_test"))
TEXTS = st.lists(WORDS, max_size=8).map(" + ".join)
FILES = st.dictionaries(st.sampled_from(("a.py", "b.py", "tests/c.py", "d.py")), TEXTS)


def table(files: dict[str, str]) -> Table:
    return Table({path: Source(text.encode(), FileFacts("python")) for path, text in files.items()})


@given(FILES)
def test_a_part_is_counted_once_for_each_word_that_is_made_of_it(files: dict[str, str]) -> None:
    words = Words({path: text.encode() for path, text in files.items()})
    for part in ("http", "server", "port", "2", "42", "x", "test", "absent"):
        counted = {
            path: sum(part in subwords(word) for word in re.findall(r"\w+", text)) for path, text in files.items()
        }
        numbers, times = words.times(part)
        found = {words.paths[number]: count for number, count in zip(numbers, times, strict=True)}
        assert found == {path: count for path, count in counted.items() if count}
    assert list(words.lengths) == [len(re.findall(r"\w+", text)) for text in files.values()]


@given(FILES, FILES, st.sets(st.sampled_from(("a.py", "b.py", "tests/c.py", "d.py"))), TEXTS)
def test_what_lies_over_a_shared_table_is_ranked_as_one_table_would_be(
    old: dict[str, str], new: dict[str, str], removed: set[str], query: str
) -> None:
    now = {path: text for path, text in old.items() if path not in removed} | new
    laid_over = Index(table(old), frozenset(old.keys() & (removed | new.keys())), table(new))
    best, weights = bm25(laid_over, query, None)
    fresh, same = bm25(Index(table(now)), query, None)
    assert (best, weights) == (fresh, same)


def test_a_file_with_the_rarer_word_is_better_and_tests_are_last() -> None:
    files = {"a.py": "port port", "b.py": "port walrus", "tests/c.py": "port walrus", "d.py": "x"}
    assert bm25(Index(table(files)), "walrus port", None)[0] == ["b.py", "tests/c.py", "a.py"]
    assert bm25(Index(table(files)), "walrus port", "tests")[0] == ["tests/c.py"]
