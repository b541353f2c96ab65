"""How the site is built: `python -m sphinx -W docs docs/_build`. Pages are MyST Markdown; nothing is fetched."""

from __future__ import annotations

import inspect
import re
from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.testing import CliRunner

from datarax_ray import __version__
from datarax_ray.cli.app import app as commands

project = "datarax_ray"
author = "the datarax_ray authors"
project_copyright = "the datarax_ray authors, Apache-2.0"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"datarax_ray {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True

maximum_signature_line_length = 70
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"

# What NumPy's DTypeLike spells out to in a signature.
_DTYPE_LIKE = re.compile(r"type\[~typing\.Any\] \| ~numpy\.dtype.*?_DTypeDict \| str")


def _short_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    return (_DTYPE_LIKE.sub("DTypeLike", signature) if signature else signature), returns


def _as_rst(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are prose: `x` is code, and "name: what it means." begins a line for each argument of that name."""
    try:
        names = "|".join(map(re.escape, inspect.signature(obj).parameters)) or "-"
    except (TypeError, ValueError):
        names = "-"
    argument = re.compile(rf"(?:^|(?<=[.;:]) )((?:{names})(?:, (?:{names}))*): (?=\S)")
    paragraphs = "\n".join(lines).split("\n\n")
    out: list[str] = []
    for paragraph in paragraphs:
        if paragraph.lstrip().startswith(">>>"):
            out += [*paragraph.splitlines(), ""]
            continue
        indented = paragraph.startswith("Args:")
        text = re.sub(r"\s*\n\s*- ", "\0", paragraph.removeprefix("Args:").strip())  # items of a list below an argument
        text = re.sub(r"\s*\n\s*", " ", text)
        if indented:
            text = re.sub(r"\s*(Raises|Source): ", r"\n\n\1: ", text)
        text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", text)
        text = re.sub(r"(?<![`*])\*(?=[\w*])", r"\\*", text)
        pieces = argument.split(text)
        out += [pieces[0], ""]
        for fields, what_it_means in zip(pieces[1::2], pieces[2::2], strict=True):
            shown = ", ".join(f"``{field}``" for field in fields.split(", "))
            first, *rest = what_it_means.split("\n\n")
            first, *items = first.split("\0")
            out += [f"- {shown}: {first}", "", *(f"  - {item}" for item in items), ""]
            for later in rest:
                out += [later, ""]
    lines[:] = out


class CommandHelp(SphinxDirective):
    """What `datarax-ray COMMAND --help` prints, for every command there is."""

    def run(self) -> list[nodes.Node]:
        shown: list[nodes.Node] = []
        for path in _paths((), typer.main.get_command(commands)):
            text = CliRunner(env={"COLUMNS": "92"}).invoke(commands, [*path, "--help"], prog_name="datarax-ray").output
            title = " ".join(("datarax-ray", *path))
            section = nodes.section(ids=[title.replace(" ", "-")], names=[title])
            section += nodes.title(title, "", nodes.literal(title, title))
            section += nodes.literal_block(text, text, language="text")
            shown.append(section)
        return shown


def _paths(path: tuple[str, ...], command: Any) -> list[tuple[str, ...]]:
    inner = getattr(command, "commands", {}).items()
    return [path, *(found for name, below in inner if not below.hidden for found in _paths((*path, name), below))]


def setup(app: Sphinx) -> None:
    app.add_directive("command-help", CommandHelp)
    app.connect("autodoc-process-docstring", _as_rst)
    app.connect("autodoc-process-signature", _short_signature)
