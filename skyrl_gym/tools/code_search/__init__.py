"""Search in the code of a repository by its syntax trees: definitions, callers, outlines, and text at last.

`CodeSearch` is the tool; an environment gives it the place where the repository is. Parsing needs tree-sitter, which
is loaded with the first search (`pip install 'skyrl-suite[swe]'`).
"""

from skyrl_gym.tools.code_search.answers import Mode
from skyrl_gym.tools.code_search.faults import Fault, new_fault
from skyrl_gym.tools.code_search.languages import check_grammars, language_of
from skyrl_gym.tools.code_search.parsers import Parsers, default_parsers
from skyrl_gym.tools.code_search.search import CodeSearch
from skyrl_gym.tools.code_search.store import Store

__all__ = [
    "CodeSearch",
    "Fault",
    "Mode",
    "Parsers",
    "Store",
    "check_grammars",
    "default_parsers",
    "language_of",
    "new_fault",
]
