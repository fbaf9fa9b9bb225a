"""`skyrl list`: what can be made."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from skyrl_gym.registration import registered

EXAMPLES = """
skyrl list
skyrl list --registry my/registry.yaml
"""


def run() -> None:
    """The registered environments."""
    table = Table("id", "what it is", "needs", box=None, pad_edge=False, header_style="bold")
    for entry in registered():
        table.add_row(entry.id, escape(entry.summary), ", ".join(entry.needs) or "-")
    Console().print(table)
