"""The site builds without a warning, and has every public name, every command and every example."""

from __future__ import annotations

import importlib.util
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer

import datarax_ray
from datarax_ray.cli.app import app
from tests.programs import python

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    built = tmp_path_factory.mktemp("site")
    options = ["-q", "-W", "--keep-going", "-d", built / "doctrees"]
    done = python("-m", "sphinx", *options, DOCS, built / "html")
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return built / "html"


class Page(HTMLParser):
    """What a page links to, and what can be linked to in it."""

    def __init__(self, path):
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            if name == "id" and value:
                self.anchors.add(value)


def test_every_link_within_the_site_leads_somewhere(site):
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 20
    broken = []
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = link.partition("#")
            there = (path.parent / target.partition("?")[0]).resolve() if target else path
            if not there.exists() or (anchor and there in pages and anchor not in pages[there].anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken


def test_nothing_is_fetched_from_elsewhere(site):
    asked = re.compile(
        r"""<(?:script|img|iframe)[^>]+src=["']https?:|<link[^>]+rel=["']stylesheet["'][^>]+href=["']https?:"""
    )
    assert [path.name for path in site.rglob("*.html") if asked.search(path.read_text())] == []


def test_every_public_name_is_in_the_reference(site):
    anchors = Page(site / "reference" / "api.html").anchors
    assert [name for name in datarax_ray.__all__ if f"datarax_ray.{name}" not in anchors] == []


def test_every_command_is_in_the_reference(site):
    anchors = Page(site / "reference" / "cli.html").anchors
    assert {"datarax-ray", "datarax-ray-demo", "datarax-ray-bench", "datarax-ray-cluster-init"} <= anchors


def links_of_markdown():
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if not re.match(r"[a-z]+:|#", link):
                yield page, link.partition("#")[0]


def test_links_lead_somewhere_where_pages_are_read_as_files():
    assert [
        f"{page.relative_to(ROOT)}: {link}" for page, link in links_of_markdown() if not (page.parent / link).exists()
    ] == []


def test_every_example_is_shown_on_a_page():
    pages = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    names = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
    assert [name for name in names if f"examples/{name}" not in pages] == []


PAGES = (ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "cluster").glob("*.md"), ROOT / "tests" / "README.md")


def said(beginning):
    """What follows it in code, on any page: the page, and the words up to the end of the command."""
    for page in PAGES:
        for rest in re.findall(rf"{re.escape(beginning)} ([^`\n#&|;]*)", page.read_text()):
            yield str(page.relative_to(ROOT)), rest.split()


def test_every_command_that_a_page_names_is_there_with_its_options():
    wrong, found = [], 0
    for page, words in [*said("`datarax-ray"), *said("\ndatarax-ray"), *said("bin/datarax-ray")]:
        command = typer.main.get_command(app)
        while words and hasattr(command, "commands") and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        options = {name for parameter in command.params for name in parameter.opts} | {"--help", "-h"}
        unknown = [word for word in words if word.startswith("-") and word.partition("=")[0] not in options]
        is_group_with_more = hasattr(command, "commands") and words[:1] not in ([], ["--help"])
        found += 1
        if unknown or is_group_with_more:
            wrong.append((page, words))
    assert found > 5
    assert not wrong


def test_every_module_that_a_page_runs_is_there():
    named = {words[0] for _, words in said("python -m") if words and words[0].startswith("tests.")}
    assert len(named) > 5
    assert [name for name in sorted(named) if importlib.util.find_spec(name) is None] == []
