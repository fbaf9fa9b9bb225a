import pytest

from textwrapper import center, columns, indent, justify, shorten, wrap

TEXT = "the quick brown fox jumps over the lazy dog"


@pytest.mark.parametrize(
    "width, expected",
    [
        (100, [TEXT]),
        (9, ["the quick", "brown fox", "jumps", "over the", "lazy dog"]),
        (10, ["the quick", "brown fox", "jumps over", "the lazy", "dog"]),
        (43, [TEXT]),
        (42, ["the quick brown fox jumps over the lazy", "dog"]),
    ],
)
def test_wrap(width, expected):
    assert wrap(TEXT, width) == expected


def test_wrap_breaks_long_words():
    assert wrap("a abcdefg b", 3) == ["a", "abc", "def", "g b"]
    assert wrap("abcdef", 3) == ["abc", "def"]


def test_wrap_of_nothing():
    assert wrap("", 5) == []
    assert wrap(" \n ", 5) == []


def test_wrap_folds_white_space():
    assert wrap("a\n\tb   c", 10) == ["a b c"]


def test_wrap_needs_a_width():
    with pytest.raises(ValueError):
        wrap("a", 0)


@pytest.mark.parametrize("width", range(1, 30))
def test_no_line_is_too_long_and_no_letter_is_lost(width):
    lines = wrap(TEXT, width)
    assert all(len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == TEXT.replace(" ", "")


def test_justify():
    assert justify("a bb c dddd ee", 8) == ["a  bb  c", "dddd ee"]
    assert justify("aa bb cc ddddddd", 9) == ["aa  bb cc", "ddddddd"]


def test_justify_spreads_the_rest_from_the_left():
    assert justify("a b c d eeeeeeeeee", 10) == ["a  b  c  d", "eeeeeeeeee"]
    assert justify("a b c eeeeeeee", 8) == ["a   b  c", "eeeeeeee"]


def test_justify_leaves_single_words_alone():
    assert justify("abcdefgh xy", 9) == ["abcdefgh", "xy"]


@pytest.mark.parametrize(
    "text, width, expected", [("ab", 6, "  ab  "), ("ab", 5, " ab  "), ("abc", 3, "abc"), ("abcd", 3, "abcd"), ("", 2, "  ")]
)
def test_center(text, width, expected):
    assert center(text, width) == expected


def test_center_with_a_fill():
    assert center("x", 4, "-") == "-x--"


def test_indent():
    assert indent("a\n\nb", "> ") == "> a\n\n> b"


def test_indent_with_another_first_prefix():
    assert indent("a\nb\nc", "  ", first="* ") == "* a\n  b\n  c"
    assert indent("a", "  ", first="") == "a"


@pytest.mark.parametrize(
    "text, width, expected",
    [
        ("hello world", 11, "hello world"),
        ("hello world", 10, "hello..."),
        ("hello world", 8, "hello..."),
        ("hello world again", 14, "hello world..."),
        ("hello world", 7, "hell..."),
        ("a  b\nc", 5, "a b c"),
    ],
)
def test_shorten(text, width, expected):
    assert shorten(text, width) == expected


def test_shorten_with_a_mark_that_does_not_fit():
    with pytest.raises(ValueError):
        shorten("hello world", 2)


def test_columns():
    assert columns(["a", "bb", "c", "d"], 80) == ["a  bb  c  d"]
    assert columns(["aa", "b", "c", "d", "e"], 10) == ["aa  c  e", "b   d"]
    assert columns(["aaaa", "bbbb"], 4) == ["aaaa", "bbbb"]
    assert columns([], 10) == []


def test_columns_fit_exactly():
    assert columns(["aa", "bb"], 6) == ["aa  bb"]
    assert columns(["aa", "bb"], 5) == ["aa", "bb"]
    assert columns(["aa", "bb"], 5, gap=1) == ["aa bb"]
