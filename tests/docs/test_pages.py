"""What every page keeps to: short, plain, and no word of ours that the glossary does not have."""

from __future__ import annotations

import json
import re

import pytest

from tests.processes import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
LONG = {
    "howto/pyg-model.md",
    "results.md",
    "maintainers/log.md",
    "maintainers/measured.md",
    "reference/settings.md",
    "reference/verbs.md",
    "reference/summary.md",
}
"""Results, the log, and what is made from the code."""


def prose_of(text: str) -> list[str]:
    """The sentences of a page, without code, tables and links' targets."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    lines = (line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "<!--", "![", "    ", ":")))
    plain = re.sub(r"\]\([^)]*\)", "]", "\n".join(lines))
    paragraphs = re.split(r"\n\s*\n|\n(?=[-*\d] )", plain)
    return [sentence for text in paragraphs for sentence in re.split(r"(?<=[.:!?])\s", " ".join(text.split()))]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90


def test_pages_are_short_and_pictures_small() -> None:
    lengths = {path.relative_to(DOCS).as_posix(): len(path.read_text().splitlines()) for path in PAGES}
    assert len(lengths) > 60 and {name for name, length in lengths.items() if length > 250} <= LONG
    pictures = [*(DOCS / "img").rglob("*.*"), *(DOCS / "drawings").rglob("*.*")]
    assert len(pictures) > 20 and all(picture.stat().st_size < 200_000 for picture in pictures)


@pytest.mark.parametrize("page", ["README.md", "docs/start.md", "docs/tutorials/index.md", "notebooks"])
def test_sentences_can_be_read_once(page: str) -> None:
    texts = [(ROOT / page).read_text()] if page != "notebooks" else []
    for notebook in (DOCS / "tutorials").glob("*.ipynb") if page == "notebooks" else ():
        cells = json.loads(notebook.read_text())["cells"]
        texts.append("\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"))
    sentences = [sentence for text in texts for sentence in prose_of(text)]
    assert len(sentences) > 3
    assert not [sentence for sentence in sentences if len(sentence.split()) > 35]


def test_the_glossary_is_short() -> None:
    words = re.findall(r"^([A-Z].*)\n: ", (DOCS / "glossary.md").read_text(), flags=re.M)
    assert words == sorted(words, key=str.lower) and 15 < len(words) <= 25


def test_nothing_names_a_page_that_is_gone() -> None:
    gone = re.compile(r"docs/[A-Z_]+\.md")
    folders = ("sargnn", "conf", "examples", "scripts", "slurm", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*") if path.suffix in (".py", ".yaml", ".md")]
    assert not [path for path in files if gone.search(path.read_text())]
