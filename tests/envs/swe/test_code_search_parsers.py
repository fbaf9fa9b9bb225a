"""Files that can't be parsed are left out, and only they."""

from skyrl_gym.tools.code_search import Parsers
from skyrl_gym.tools.code_search.facts import FileFacts


def test_a_file_that_takes_too_long_is_left_out_and_the_next_is_parsed() -> None:
    hasty, patient = Parsers(1, file_s=0.000001), Parsers(1)

    def names(data: bytes) -> list[str]:
        (facts,) = patient.scan([("python", data)])
        return [definition.name for definition in facts.definitions]

    try:
        assert hasty.scan([("python", b"def f(): pass\n" * 10_000)]) == [FileFacts("python")]
        assert names(b"def f(): pass\n") == ["f"]
        assert names(b"(" * 500_000) == []
        assert names(b"def g(): pass\n") == ["g"]
    finally:
        hasty.close()
        patient.close()


def test_of_files_that_are_parsed_together_only_the_one_that_can_not_be_is_left_out() -> None:
    parsers = Parsers(1)
    too_deep, too_large = b"(" * 100_000, b"def f(): pass\n" * 100_000
    try:
        files = [b"def first(): pass\n", too_deep, b"def second(): pass\n", too_large, b"def last(): pass\n"]
        found = parsers.scan([("python", data) for data in files])
        assert [[one.name for one in facts.definitions] for facts in found] == [["first"], [], ["second"], [], ["last"]]
    finally:
        parsers.close()
