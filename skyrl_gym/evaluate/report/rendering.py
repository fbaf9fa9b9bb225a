"""Templates that let nothing through unescaped, and the files beside them."""

from __future__ import annotations

from importlib import resources

import jinja2
from markupsafe import Markup

from skyrl_gym.evaluate.report.text import plain, visible

__all__ = ["asset", "make_templates"]

PACKAGE = "skyrl_gym.evaluate.report"


def make_templates(*packages: str) -> jinja2.Environment:
    """The report's templates, and those of other packages, which may use them."""
    templates = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package) for package in (*packages, PACKAGE)]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Every value goes through it, also where a template forgets to ask.
        finalize=lambda value: value if isinstance(value, Markup) else visible(value),
    )
    templates.filters["plain"] = plain
    return templates


def asset(name: str, package: str = PACKAGE) -> str:
    """A file beside the templates."""
    return (resources.files(package) / "templates" / name).read_text()
