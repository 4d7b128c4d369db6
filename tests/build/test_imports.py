"""The modules of the package import each other without a circle; product/ knows no family."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import jax_bwgemm

PACKAGE = Path(jax_bwgemm.__file__).parent

# Modules that import others of ours within functions, and why they do not at the top.
DEFERRED = {
    "jax_bwgemm": "jax.export is slow to import, autotune is rarely needed",
    "jax_bwgemm.cli.demo": "the options are parsed before anything is imported",
    "jax_bwgemm.cli.demo_blackwell": "the emulator may not have been built",
    "jax_bwgemm.cli.emulate": "the options are parsed before anything is imported",
    "jax_bwgemm.cli.info": "the options are parsed before anything is imported",
    "jax_bwgemm.cli.tune": "the options are parsed before anything is imported",
}


def modules() -> dict[str, Path]:
    """Every module of the package, by name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("jax_bwgemm", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports(tree: ast.AST, known: set[str]) -> Iterator[tuple[str, bool]]:
    """Our modules that a module imports, and whether it does so within a function."""

    def walk(node: ast.AST, *, deferred: bool) -> Iterator[tuple[str, bool]]:
        deferred |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.Import):
            yield from ((a.name, deferred) for a in node.names if a.name in known)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                name = name if name in known else node.module or ""
                if name in known:
                    yield name, deferred
        for child in ast.iter_child_nodes(node):
            yield from walk(child, deferred=deferred)

    return walk(tree, deferred=False)


def graph(*, deferred: bool) -> dict[str, set[str]]:
    """Which of our modules each imports, at its top or within functions."""
    found = modules()
    known = set(found)
    return {
        name: {x for x, late in imports(ast.parse(path.read_text()), known) if late == deferred}
        for name, path in found.items()
    }


def circle(edges: dict[str, set[str]]) -> list[str] | None:
    """Modules that import each other in a circle; None where there is none."""
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return None


def test_no_circle() -> None:
    assert circle(graph(deferred=False)) is None


def test_deferred_imports_are_few_and_have_a_reason() -> None:
    late = {name for name, edges in graph(deferred=True).items() if edges}
    assert late == set(DEFERRED)


def test_what_is_shared_knows_no_family_of_products() -> None:
    above = ("jax_bwgemm.dense", "jax_bwgemm.grouped", "jax_bwgemm.tuning", "jax_bwgemm.cli")
    for name, edges in graph(deferred=False).items():
        if name.startswith("jax_bwgemm.product"):
            assert not [x for x in edges if x.startswith(above)], name


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from jax_bwgemm import runtime", [("jax_bwgemm.runtime", False)]),
        ("import jax_bwgemm.runtime as r", [("jax_bwgemm.runtime", False)]),
        ("from jax_bwgemm.runtime import kernels", [("jax_bwgemm.runtime", False)]),
        ("def f():\n    from jax_bwgemm import runtime", [("jax_bwgemm.runtime", True)]),
        ("import jax", []),
    ],
)
def test_imports_are_found(source: str, found: list) -> None:
    assert list(imports(ast.parse(source), {"jax_bwgemm", "jax_bwgemm.runtime"})) == found


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) is not None
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None
