from datetime import datetime

import pytest

from cronline import CronExpression
from cronline.fields import DAY, HOUR, MINUTE, MONTH, WEEKDAY


@pytest.mark.parametrize(
    "field, text, expected",
    [
        (HOUR, "*", set(range(24))),
        (HOUR, "3", {3}),
        (HOUR, "1-4", {1, 2, 3, 4}),
        (HOUR, "*/6", {0, 6, 12, 18}),
        (HOUR, "20/2", {20, 22}),
        (HOUR, "1-7/3", {1, 4, 7}),
        (HOUR, "1,5,9-10", {1, 5, 9, 10}),
        (MINUTE, "59", {59}),
        (DAY, "31", {31}),
        (DAY, "*/10", {1, 11, 21, 31}),
        (MONTH, "jan", {1}),
        (MONTH, "DEC", {12}),
        (MONTH, "nov-dec", {11, 12}),
        (WEEKDAY, "sun", {0}),
        (WEEKDAY, "mon-fri", {1, 2, 3, 4, 5}),
    ],
)
def test_fields(field, text, expected):
    assert field.parse(text) == expected


@pytest.mark.parametrize(
    "field, text",
    [(HOUR, "24"), (MINUTE, "60"), (DAY, "0"), (DAY, "32"), (MONTH, "13"), (WEEKDAY, "8"), (HOUR, "x"),
     (HOUR, "5-2"), (HOUR, "*/0"), (HOUR, "*/x"), (HOUR, ""), (HOUR, "1,,2")],
)
def test_bad_fields(field, text):
    with pytest.raises(ValueError, match=field.name):
        field.parse(text)


@pytest.mark.parametrize("text", ["", "* * * *", "* * * * * *", "@never"])
def test_bad_expressions(text):
    with pytest.raises(ValueError, match="five fields"):
        CronExpression(text)


def test_seven_is_sunday_too():
    assert CronExpression("0 0 * * 7").weekdays == {0}


@pytest.mark.parametrize(
    "text, moment, expected",
    [
        ("* * * * *", (2024, 1, 1, 0, 0), True),
        ("30 4 * * *", (2024, 1, 1, 4, 30), True),
        ("30 4 * * *", (2024, 1, 1, 4, 31), False),
        ("30 4 * * *", (2024, 1, 1, 5, 30), False),
        ("0 0 15 * *", (2024, 3, 15, 0, 0), True),
        ("0 0 15 * *", (2024, 3, 16, 0, 0), False),
        ("0 0 * 6 *", (2024, 6, 2, 0, 0), True),
        ("0 0 * 6 *", (2024, 7, 2, 0, 0), False),
        ("0 0 * * mon", (2024, 1, 1, 0, 0), True),
        ("0 0 * * sun", (2024, 1, 7, 0, 0), True),
        ("0 0 * * mon", (2024, 1, 2, 0, 0), False),
        ("0 0 13 * fri", (2024, 9, 13, 0, 0), True),
        ("0 0 13 * fri", (2024, 8, 13, 0, 0), True),
        ("0 0 13 * fri", (2024, 8, 16, 0, 0), True),
        ("0 0 13 * fri", (2024, 8, 15, 0, 0), False),
    ],
)
def test_matches(text, moment, expected):
    assert CronExpression(text).matches(datetime(*moment)) is expected


@pytest.mark.parametrize(
    "text, after, expected",
    [
        ("* * * * *", (2024, 1, 1, 0, 0, 30), (2024, 1, 1, 0, 1)),
        ("* * * * *", (2024, 1, 1, 0, 0), (2024, 1, 1, 0, 1)),
        ("0 12 * * *", (2024, 1, 1, 11, 59), (2024, 1, 1, 12, 0)),
        ("0 12 * * *", (2024, 1, 1, 12, 0), (2024, 1, 2, 12, 0)),
        ("59 23 31 12 *", (2024, 12, 31, 23, 59), (2025, 12, 31, 23, 59)),
        ("0 0 29 2 *", (2024, 2, 29, 0, 0), (2028, 2, 29, 0, 0)),
        ("0 0 29 2 *", (2097, 1, 1), (2104, 2, 29, 0, 0)),
        ("*/20 8-9 * * *", (2024, 1, 1, 9, 30), (2024, 1, 1, 9, 40)),
        ("*/20 8-9 * * *", (2024, 1, 1, 9, 45), (2024, 1, 2, 8, 0)),
        ("0 0 * * sat", (2024, 1, 1), (2024, 1, 6, 0, 0)),
        ("@monthly", (2024, 1, 31), (2024, 2, 1, 0, 0)),
        ("@yearly", (2024, 1, 1, 0, 0), (2025, 1, 1, 0, 0)),
        ("@weekly", (2024, 1, 1), (2024, 1, 7, 0, 0)),
        ("@Hourly", (2024, 1, 1, 5, 10), (2024, 1, 1, 6, 0)),
    ],
)
def test_next_after(text, after, expected):
    assert CronExpression(text).next_after(datetime(*after)) == datetime(*expected)


def test_a_day_that_never_comes():
    assert CronExpression("0 0 31 2 *").next_after(datetime(2024, 1, 1)) is None


def test_upcoming():
    found = CronExpression("0 */8 * * *").upcoming(datetime(2024, 1, 1, 7), 4)
    assert [moment.hour for moment in found] == [8, 16, 0, 8]
    assert CronExpression("0 0 31 2 *").upcoming(datetime(2024, 1, 1), 3) == []
