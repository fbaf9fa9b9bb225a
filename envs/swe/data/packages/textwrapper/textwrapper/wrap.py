"""Wrapping paragraphs."""


def wrap(text, width):
    """Lines of at most `width` characters; longer words are broken."""
    if width < 1:
        raise ValueError("width must be at least 1")
    lines = []
    line = ""
    for word in text.split():
        while len(word) > width:
            if line:
                lines.append(line)
                line = ""
            lines.append(word[:width])
            word = word[width:]
        if not word:
            continue
        if not line:
            line = word
        elif len(line) + 1 + len(word) <= width:
            line = f"{line} {word}"
        else:
            lines.append(line)
            line = word
    if line:
        lines.append(line)
    return lines


def justify(text, width):
    """Like `wrap`, with spaces spread so that every line but the last is full."""
    lines = wrap(text, width)
    return [_fill(line, width) for line in lines[:-1]] + lines[-1:]


def _fill(line, width):
    words = line.split()
    if len(words) == 1:
        return line
    spaces = width - sum(map(len, words))
    gaps = len(words) - 1
    base, extra = divmod(spaces, gaps)
    parts = []
    for index, word in enumerate(words[:-1]):
        parts.append(word + " " * (base + (1 if index < extra else 0)))
    return "".join(parts) + words[-1]


def center(text, width, fill=" "):
    """The text in the middle; an odd rest goes to the right."""
    rest = width - len(text)
    if rest <= 0:
        return text
    left = rest // 2
    return fill * left + text + fill * (rest - left)


def indent(text, prefix, first=None):
    """Every line that is not blank with a prefix; the first line may have its own."""
    lines = text.split("\n")
    found = []
    for number, line in enumerate(lines):
        start = first if number == 0 and first is not None else prefix
        found.append(start + line if line.strip() else line)
    return "\n".join(found)


def shorten(text, width, mark="..."):
    """One line of at most `width` characters, cut between words and marked."""
    text = " ".join(text.split())
    if len(text) <= width:
        return text
    if len(mark) > width:
        raise ValueError("the mark does not fit")
    room = width - len(mark)
    cut = text[:room]
    if text[room] != " " and " " in cut:
        cut = cut[: cut.rindex(" ")]
    return cut.rstrip() + mark
