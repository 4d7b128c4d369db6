"""Who may import whom in tuning: records at the bottom, measuring at the top."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "jax_bwgemm"
# Each may import those before it.
LAYERS = (
    ("keys", "records"),
    ("text", "storage", "context"),
    ("table",),
    ("files", "devices"),
    ("on_miss",),
    ("lookup",),
)


def imports(path: Path) -> set[str]:
    """Modules of the package that a file imports, also inside of functions.

    A package counts where it is what is imported, not where a module of it is.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys() or {node.module}
    return found & MODULES.keys()


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def test_what_finds_entries_knows_nothing_of_what_measures_them() -> None:
    below: set[str] = set()
    for layer in LAYERS:
        below |= {f"jax_bwgemm.tuning.{name}" for name in layer}
        for name in layer:
            wanted = imports(MODULES[f"jax_bwgemm.tuning.{name}"])
            tuning = {m for m in wanted if m.startswith("jax_bwgemm.tuning.")}
            assert tuning <= below, name
            # Of the products, only the words that configurations have.
            rest = {m for m in wanted if m.startswith(("jax_bwgemm.dense.", "jax_bwgemm.grouped."))}
            assert rest <= {
                "jax_bwgemm.dense.tuning_config",
                "jax_bwgemm.grouped.grouped_config",
            }, name
