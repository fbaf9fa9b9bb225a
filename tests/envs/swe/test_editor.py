"""The editor changes what it is told to, and not one byte else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyrl_gym.envs.swe.editor import encode_text, insert_text, replace_text, view_text
from skyrl_gym.errors import ToolError

pieces = st.sampled_from([b"\t", b"\r\n", b"\n", b"\xef\xbb\xbf", b"\xff", b"\xc3\xa9", b"a", b"  ", b"\x0c"])


@given(st.lists(pieces).map(b"".join), st.lists(pieces).map(b"".join))
def test_bytes_around_the_replaced_text_stay(before: bytes, after: bytes) -> None:
    """The published editor turns tabs into spaces in the whole file."""
    assert replace_text(before + b"@old@" + after, "@old@", "@new@") == before + b"@new@" + after


@pytest.mark.parametrize("data", [b"a\r\nb\r\nc\r\n", b"a\r\nb\r\nc"])
def test_line_ends_of_the_file_are_kept(data: bytes) -> None:
    assert replace_text(data, "a\nb", "x\ny") == data.replace(b"a\r\nb", b"x\r\ny")
    assert insert_text(data, 1, "new").startswith(b"a\r\nnew\r\nb\r\n")


def test_new_lines_get_the_line_ends_of_the_file() -> None:
    assert replace_text(b"a\r\nb\r\n", "b", "x\ny") == b"a\r\nx\r\ny\r\n"
    assert replace_text(b"a\r\nb\r\nc\nd\r\n", "c\nd", "x") == b"a\r\nb\r\nx\r\n"
    assert replace_text(b"a\nb\n", "b", "x\r\ny") == b"a\nx\r\ny\n"


def test_other_encodings_are_kept() -> None:
    assert replace_text("é = ü".encode("latin-1"), "é", "ö") == "ö = ü".encode("latin-1")
    assert replace_text(b"\xff = 1", "1", "2") == b"\xff = 2"
    with pytest.raises(ToolError, match=r"the file's encoding .latin-1. has not"):
        replace_text("é".encode("latin-1"), "é", "→")


@pytest.mark.parametrize(
    ("data", "line", "text", "expected"),
    [
        (b"a\nb\n", 0, "x", b"x\na\nb\n"),
        (b"a\nb\n", 1, "x\n", b"a\nx\nb\n"),
        (b"a\nb\n", 2, "x", b"a\nb\nx\n"),
        (b"a\nb", 2, "x", b"a\nb\nx"),
        (b"", 0, "x", b"x\n"),
        (b"\xef\xbb\xbfa\r\nb", 0, "x", b"\xef\xbb\xbfx\r\na\r\nb"),
        (b"\xef\xbb\xbfa", 1, "x", b"\xef\xbb\xbfa\nx"),
        (b"\xef\xbb\xbf", 0, "x", b"\xef\xbb\xbfx\n"),
    ],
)
def test_insert(data: bytes, line: int, text: str, expected: bytes) -> None:
    assert insert_text(data, line, text) == expected


def test_a_miss_shows_the_nearest_lines_and_a_double_their_numbers() -> None:
    with pytest.raises(ToolError, match=r"2\tdef area\(r\):"):
        replace_text(b"x\ndef area(r):\n", "def area(radius):", "")
    with pytest.raises(ToolError, match=r"2 places .lines 1, 3"):
        replace_text(b"a\nb\na\n", "a\n", "")
    with pytest.raises(ToolError, match=r"1\t\treturn 1$"):
        replace_text(b"\treturn 1\n", "    return 1", "")
    with pytest.raises(ToolError, match="No line of it is like the text"):
        replace_text(b"x\n" * 100_000, "something else", "")
    with pytest.raises(ToolError, match="empty"):
        replace_text(b"a", "", "b")
    with pytest.raises(ToolError, match="the same"):
        replace_text(b"a", "a", "a")
    with pytest.raises(ToolError, match="between 0 and 1; got 5"):
        insert_text(b"a\n", 5, "x")


def test_view() -> None:
    assert view_text(b"a\nb\nc\n", 2, 3) == "     2\tb\n     3\tc"
    assert view_text(b"") == "The file is empty."
    assert view_text(b"x\n" * 500).endswith("[100 more lines; use view_range to see them]")
    assert view_text(b"a\x0cb\r\nc", 1, 9) == "     1\ta\x0cb\n     2\tc"
    for first, last in ((0, 1), (4, 5), (3, 2)):
        with pytest.raises(ToolError, match="does not fit"):
            view_text(b"a\nb\nc\n", first, last)
    with pytest.raises(ToolError, match="binary"):
        view_text(b"\0\1")


def test_half_a_character_can_not_be_written() -> None:
    assert encode_text("é\udcff") == b"\xc3\xa9\xff"
    with pytest.raises(ToolError, match="half of a character"):
        encode_text("\ud83d")
