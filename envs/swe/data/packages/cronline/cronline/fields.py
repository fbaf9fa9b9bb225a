"""One field of a cron expression: lists, ranges and steps."""

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


class Field:
    """The bounds and names of a field."""

    def __init__(self, name, low, high, names=(), names_start=0):
        self.name = name
        self.low = low
        self.high = high
        self._numbers = {text: number for number, text in enumerate(names, names_start)}

    def parse(self, text):
        """The set of values that a field's text allows."""
        values = set()
        for part in text.split(","):
            values |= self._part(part)
        return frozenset(values)

    def _part(self, text):
        body, slash, step_text = text.partition("/")
        step = self._step(step_text) if slash else 1
        if body == "*":
            first, last = self.low, self.high
        elif "-" in body:
            first, last = (self._value(end) for end in body.split("-", 1))
            if first > last:
                raise ValueError(f"{self.name}: the range {body!r} is backwards")
        else:
            first = self._value(body)
            last = self.high if slash else first
        return set(range(first, last + 1, step))

    def _step(self, text):
        if not text.isdigit() or int(text) < 1:
            raise ValueError(f"{self.name}: bad step {text!r}")
        return int(text)

    def _value(self, text):
        if text.lower() in self._numbers:
            return self._numbers[text.lower()]
        if not text.isdigit():
            raise ValueError(f"{self.name}: bad value {text!r}")
        value = int(text)
        if value < self.low or value > self.high:
            raise ValueError(f"{self.name}: {value} is not between {self.low} and {self.high}")
        return value


MINUTE = Field("minute", 0, 59)
HOUR = Field("hour", 0, 23)
DAY = Field("day", 1, 31)
MONTH = Field("month", 1, 12, MONTHS, 1)
WEEKDAY = Field("weekday", 0, 7, DAYS)
