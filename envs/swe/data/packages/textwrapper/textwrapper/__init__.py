"""Plain text in lines of a given width."""

from textwrapper.columns import columns
from textwrapper.wrap import center, indent, justify, shorten, wrap

__all__ = ["center", "columns", "indent", "justify", "shorten", "wrap"]
