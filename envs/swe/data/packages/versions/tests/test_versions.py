import pytest

from versions import Requirement, Version

ORDERED = [
    "0.1.0", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2",
    "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "2.0.0",
]


@pytest.mark.parametrize("text", ["1.2.3", "0.0.0", "1.2.3-alpha.1", "1.2.3+build.5", "1.2.3-rc.1+x"])
def test_text_round_trips(text):
    assert str(Version.parse(text)) == text


@pytest.mark.parametrize("text", ["", "1", "1.2", "1.2.3.4", "01.2.3", "1.2.3-", "a.b.c", "1.2.3-01"])
def test_what_is_no_version_is_refused(text):
    with pytest.raises(ValueError):
        Version.parse(text)


def test_parts():
    version = Version.parse("1.2.3-rc.4+abc")
    assert (version.major, version.minor, version.patch) == (1, 2, 3)
    assert version.pre == ("rc", 4)
    assert version.build == "abc"


def test_white_space_around_is_ignored():
    assert Version.parse(" 1.2.3\n") == Version(1, 2, 3)


def test_negative_numbers_are_refused():
    with pytest.raises(ValueError):
        Version(1, -1, 0)


@pytest.mark.parametrize("low, high", list(zip(ORDERED, ORDERED[1:])))
def test_order(low, high):
    assert Version.parse(low) < Version.parse(high)
    assert not Version.parse(high) < Version.parse(low)


def test_sorting():
    assert sorted(map(Version.parse, reversed(ORDERED))) == [Version.parse(text) for text in ORDERED]


def test_build_does_not_count():
    assert Version.parse("1.0.0+a") == Version.parse("1.0.0+b")
    assert hash(Version.parse("1.0.0+a")) == hash(Version.parse("1.0.0+b"))


def test_pre_release_is_not_equal_to_its_release():
    assert Version.parse("1.0.0-rc.1") != Version.parse("1.0.0")


@pytest.mark.parametrize("text, stable", [("1.0.0", True), ("0.9.0", False), ("1.0.0-rc.1", False)])
def test_stability(text, stable):
    assert Version.parse(text).is_stable is stable


@pytest.mark.parametrize(
    "text, part, expected",
    [
        ("1.2.3", "major", "2.0.0"),
        ("1.2.3", "minor", "1.3.0"),
        ("1.2.3", "patch", "1.2.4"),
        ("1.2.3-rc.1", "patch", "1.2.3"),
    ],
)
def test_bump(text, part, expected):
    assert str(Version.parse(text).bump(part)) == expected


def test_bump_of_an_unknown_part():
    with pytest.raises(ValueError, match="unknown part"):
        Version(1).bump("epoch")


@pytest.mark.parametrize(
    "requirement, version, allowed",
    [
        (">=1.2.0", "1.2.0", True),
        (">1.2.0", "1.2.0", False),
        ("<=1.2.0", "1.2.1", False),
        ("<2.0.0", "1.9.9", True),
        ("!=1.0.0", "1.0.0", False),
        ("1.0.0", "1.0.0", True),
        ("==1.0.0", "1.0.1", False),
        (">=1.0.0, <2.0.0", "2.0.0", False),
        (">=1.0.0, <2.0.0", "1.5.0", True),
        ("^1.2.3", "1.2.3", True),
        ("^1.2.3", "1.9.0", True),
        ("^1.2.3", "2.0.0", False),
        ("^0.2.3", "0.2.9", True),
        ("^0.2.3", "0.3.0", False),
        ("^0.0.3", "0.0.4", False),
        ("~1.2.3", "1.2.9", True),
        ("~1.2.3", "1.3.0", False),
        ("~1.2.3", "1.2.2", False),
    ],
)
def test_requirements(requirement, version, allowed):
    assert Requirement(requirement).allows(version) is allowed


def test_best():
    versions = [Version.parse(text) for text in ORDERED]
    assert Requirement("^1.0.0").best(versions) == Version.parse("1.10.0")
    assert Requirement(">3.0.0").best(versions) is None
