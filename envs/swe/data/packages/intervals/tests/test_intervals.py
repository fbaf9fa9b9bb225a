import pytest

from intervals import Interval, IntervalSet


def test_low_above_high_is_refused():
    with pytest.raises(ValueError, match="above"):
        Interval(2, 1)


def test_a_point_is_an_interval():
    assert Interval(3, 3).length == 0


def test_length():
    assert Interval(2, 7).length == 5


@pytest.mark.parametrize("value, inside", [(1, False), (2, True), (3, True), (4, True), (5, False)])
def test_contains(value, inside):
    assert (value in Interval(2, 4)) is inside


def test_equality_and_hash():
    assert Interval(1, 2) == Interval(1, 2)
    assert Interval(1, 2) != Interval(1, 3)
    assert Interval(1, 2) != Interval(0, 2)
    assert len({Interval(1, 2), Interval(1, 2)}) == 1


def test_not_equal_to_other_types():
    assert Interval(1, 2) != (1, 2)


@pytest.mark.parametrize(
    "other, expected",
    [((5, 9), True), ((4, 9), True), ((6, 9), False), ((-1, 0), False), ((-1, 1), True), ((2, 3), True)],
)
def test_overlaps(other, expected):
    assert Interval(1, 5).overlaps(Interval(*other)) is expected
    assert Interval(*other).overlaps(Interval(1, 5)) is expected


def test_intersection():
    assert Interval(1, 5).intersection(Interval(3, 9)) == Interval(3, 5)


def test_intersection_of_disjoint_intervals():
    assert Interval(1, 2).intersection(Interval(3, 4)) is None


def test_intersection_in_one_point():
    assert Interval(1, 2).intersection(Interval(2, 4)) == Interval(2, 2)


def test_hull():
    assert Interval(1, 2).hull(Interval(5, 6)) == Interval(1, 6)
    assert Interval(1, 9).hull(Interval(5, 6)) == Interval(1, 9)


@pytest.mark.parametrize("a, b, gap", [((0, 1), (4, 5), 3), ((4, 5), (0, 1), 3), ((0, 1), (1, 2), 0), ((0, 9), (3, 4), 0)])
def test_distance(a, b, gap):
    assert Interval(*a).distance(Interval(*b)) == gap


def test_shift():
    assert Interval(1, 2).shift(-3) == Interval(-2, -1)


def test_split():
    assert Interval(0, 6).split(3) == [Interval(0, 2), Interval(2, 4), Interval(4, 6)]
    assert Interval(1, 2).split(1) == [Interval(1, 2)]


def test_split_into_nothing_is_refused():
    with pytest.raises(ValueError):
        Interval(0, 1).split(0)


def test_set_is_sorted_and_merged():
    found = IntervalSet([Interval(5, 6), Interval(1, 2), Interval(2, 3)])
    assert list(found) == [Interval(1, 3), Interval(5, 6)]


def test_adding_bridges_several():
    found = IntervalSet([Interval(1, 2), Interval(4, 5), Interval(8, 9)])
    found.add(Interval(2, 8))
    assert list(found) == [Interval(1, 9)]


def test_set_length():
    assert len(IntervalSet()) == 0
    assert IntervalSet([Interval(1, 2), Interval(4, 7)]).total_length == 4


@pytest.mark.parametrize("value, inside", [(0, False), (1, True), (2, True), (3, False), (4, True), (9, False)])
def test_set_contains(value, inside):
    assert (value in IntervalSet([Interval(4, 6), Interval(1, 2)])) is inside


def test_gaps():
    assert IntervalSet([Interval(1, 2), Interval(4, 5), Interval(9, 9)]).gaps() == [(2, 4), (5, 9)]
    assert IntervalSet([Interval(1, 2)]).gaps() == []


def test_set_intersection():
    a = IntervalSet([Interval(0, 3), Interval(6, 9)])
    b = IntervalSet([Interval(2, 7)])
    assert list(a.intersection(b)) == [Interval(2, 3), Interval(6, 7)]
    assert list(a.intersection(IntervalSet())) == []
