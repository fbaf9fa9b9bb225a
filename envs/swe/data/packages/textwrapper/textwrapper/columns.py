"""Items in columns, as `ls` shows them."""


def columns(items, width, gap=2):
    """Lines that hold the items column by column, in as few lines as fit into the width."""
    items = list(items)
    if not items:
        return []
    for rows in range(1, len(items) + 1):
        widths = _widths(items, rows)
        if sum(widths) + gap * (len(widths) - 1) <= width or rows == len(items):
            return [_line(items, row, rows, widths, gap) for row in range(rows)]
    raise AssertionError("one item a line always ends the loop")


def _widths(items, rows):
    """The width of each column."""
    return [max(map(len, items[start : start + rows])) for start in range(0, len(items), rows)]


def _line(items, row, rows, widths, gap):
    cells = items[row::rows]
    padded = [cell.ljust(width) for cell, width in zip(cells, widths)]
    return (" " * gap).join(padded).rstrip()
