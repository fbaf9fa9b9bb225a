"""Cron expressions: minute, hour, day of month, month, day of week."""

from datetime import timedelta

from cronline.fields import DAY, HOUR, MINUTE, MONTH, WEEKDAY

SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
SEARCH_DAYS = 366 * 8  # a 29th of February may be eight years away


class CronExpression:
    """A parsed expression."""

    def __init__(self, text):
        parts = SHORTHANDS.get(text.strip().lower(), text).split()
        if len(parts) != 5:
            raise ValueError(f"five fields expected, got {len(parts)}")
        self.minutes = MINUTE.parse(parts[0])
        self.hours = HOUR.parse(parts[1])
        self.days = DAY.parse(parts[2])
        self.months = MONTH.parse(parts[3])
        self.weekdays = frozenset(value % 7 for value in WEEKDAY.parse(parts[4]))
        # With both restricted, a day that fits either of them fires.
        self._either = not parts[2].startswith("*") and not parts[4].startswith("*")

    def matches(self, moment):
        return (
            moment.minute in self.minutes
            and moment.hour in self.hours
            and self.matches_day(moment)
        )

    def matches_day(self, moment):
        if moment.month not in self.months:
            return False
        in_month = moment.day in self.days
        in_week = moment.isoweekday() % 7 in self.weekdays
        if self._either:
            return in_month or in_week
        return in_month and in_week

    def next_after(self, moment):
        """The first time after `moment` at which it fires, or None if it never does."""
        start = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
        day = start.replace(hour=0, minute=0)
        for offset in range(SEARCH_DAYS):
            today = day + timedelta(days=offset)
            if not self.matches_day(today):
                continue
            for hour in sorted(self.hours):
                for minute in sorted(self.minutes):
                    found = today.replace(hour=hour, minute=minute)
                    if found >= start:
                        return found
        return None

    def upcoming(self, moment, count):
        """The next `count` times."""
        found = []
        while len(found) < count:
            moment = self.next_after(moment)
            if moment is None:
                break
            found.append(moment)
        return found
