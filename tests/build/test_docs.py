"""The documents hold together: the README's length, links, and names of programs and files.

Comments and docstrings too: a file of this repository that they name exists.
"""

from __future__ import annotations

import builtins
import functools
import re
import symtable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_README_WORDS = 1500
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# A path of this repository in running text or code: a known folder, then a file with an extension.
FILE = re.compile(
    r"(?<![\w./-])((?:benchmarks|cc|cmake|docs|examples|jax_bwgemm|tests|tools)/[\w./-]*\.(?!\.)\w+)"
)
SOURCE_SUFFIXES = {".py", ".pyi", ".h", ".cc", ".cu", ".cmake", ".def", ".toml"}
PROGRAM = re.compile(r"\bpython ([\w./-]+\.py)\b")
# `dense/api.py`: a module of the package, without the package's name.
MODULE = re.compile(
    r"`((?:cli|dense|emulator|epilogue|experts|grouped|loss|product|rewriting|scaled|tuning)/\w+\.py)`"
)
# `call/buffer.h`: a C++ file, without the folder cc.
CPP_FILE = re.compile(r"`((?:call|core|dense|grouped|scaled|sm90)/[\w/]+\.(?:h|cc|cu|cmake|def))`")

pytestmark = pytest.mark.skipif(
    not (ROOT / "README.md").exists(), reason="needs the source tree, not an installed package"
)


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


BRACES = re.compile(r"`([\w./]*)\{([\w,]+)\}([^`]*)`")


def spelled_out(name: re.Match[str]) -> str:
    """`a/{b,c}.h` as `a/b.h` `a/c.h`."""
    before, parts, after = name.groups()
    return " ".join(f"`{before}{part}{after}`" for part in parts.split(","))


@functools.cache
def text(document: Path) -> str:
    found = document.read_text(encoding="utf-8")
    while (spelled := BRACES.sub(spelled_out, found)) != found:
        found = spelled
    return found


def headings(document: Path) -> set[str]:
    """Anchors of a page, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", text(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


def broken_links(document: Path) -> list[str]:
    """Relative links to files or headings that do not exist."""
    broken = []
    for link in LINK.findall(text(document)):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in headings(target)):
            broken.append(link)
    return broken


@functools.cache
def sources() -> list[Path]:
    """Source files, without build folders and environments."""
    folders = ("benchmarks", "cc", "cmake", "examples", "jax_bwgemm", "tests", "tools")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return [*ROOT.glob("*.toml"), *(path for path in found if path.suffix in SOURCE_SUFFIXES)]


def missing_files(document: Path) -> list[str]:
    """Named files of the repository that do not exist."""
    named = {*FILE.findall(text(document)), *PROGRAM.findall(text(document))}
    named |= {f"jax_bwgemm/{module}" for module in MODULE.findall(text(document))}
    named |= {f"cc/{file}" for file in CPP_FILE.findall(text(document))}
    return sorted(name for name in named if not (ROOT / name).exists())


# What programs of a page call the reader's own, without a definition.
READERS_OWN = {
    "README.md": {"hidden", "labels", "head", "loss_fn"},
    "accelerate.md": {"loss_fn", "params", "batch"},
    "emulator.md": {"ptx_text", "kernel"},
    "reports.md": {"module", "source", "target"},
    "low_precision.md": {"blocks", "scales", "group_sizes", "loss_fn"},
    "tuning.md": {"train_step", "params", "batch"},
}


def undefined_names(document: Path) -> list[str]:
    """Names that a page's Python programs, read one after the other, use before they exist."""
    known = {*dir(builtins), *READERS_OWN.get(document.name, ())}
    missing: list[str] = []
    for program in re.findall(r"^```python\n(.*?)^```", text(document), re.DOTALL | re.MULTILINE):
        tables = [symtable.symtable(program, document.name, "exec")]
        used: list[str] = []
        for table in tables:
            tables += table.get_children()
            for name in table.get_symbols():
                if (name.is_assigned() and table is tables[0]) or name.is_imported():
                    known.add(name.get_name())
                elif name.is_global() or table is tables[0]:
                    used.append(name.get_name())
        missing += [name for name in used if name not in known]
    return missing


def test_readme_is_short() -> None:
    words = len(text(ROOT / "README.md").split())
    assert words <= MOST_README_WORDS, f"README.md has {words} words"


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    assert broken_links(document) == []


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_named_files_exist(document: Path) -> None:
    assert missing_files(document) == []


def test_files_named_in_sources_exist() -> None:
    missing = {
        f"{source.relative_to(ROOT)} names {name}"
        for source in sources()
        if source != Path(__file__)
        for name in FILE.findall(text(source))
        if Path(name).suffix in {*SOURCE_SUFFIXES, ".md"} and not (ROOT / name).exists()
    }
    assert not missing


@pytest.mark.parametrize("document", sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: p.name)
def test_page_is_linked_from_the_one_above_and_says_what_it_is_for(document: Path) -> None:
    """From the README, or for a page of `docs/decisions` from `docs/decisions.md`."""
    folder = document.parent
    above = ROOT / "README.md" if folder == ROOT / "docs" else folder.with_suffix(".md")
    assert str(document.relative_to(above.parent)) in LINK.findall(text(above))
    title, empty, first = text(document).split("\n", 2)
    assert title.startswith("# ")
    assert empty == ""
    assert re.match("After (this page|these pages) you ", first)


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_programs_use_what_they_define(document: Path) -> None:
    assert undefined_names(document) == []


def test_checks_notice_what_is_wrong(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n[a](missing.md) [b](#a-page) [c](#none) [d](https://x.invalid/e.md)\n"
        "`python benchmarks/none.py` and cc/core/none.h, `python benchmarks/compare.py`\n"
        "`dense/none.py`, `dense/api.py`, `call/none.h`, `core/{status,absent}.{h}`\n"
        "```python\nimport a\nb = [a for _ in c]\ndef f(d): return d, e, b\n```\n"
        "text\n```python\nprint(f(a), d)\n```\n",
        encoding="utf-8",
    )
    assert broken_links(page) == ["missing.md", "#none"]
    assert undefined_names(page) == ["c", "e", "d"]
    assert missing_files(page) == [
        "benchmarks/none.py",
        "cc/call/none.h",
        "cc/core/absent.h",
        "cc/core/none.h",
        "jax_bwgemm/dense/none.py",
    ]
