"""Random programs compute the same with `accelerate`, whatever it decides."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from accelerated import has_all_majors
from random_programs import program

import jax_bwgemm as bw
from jax_bwgemm.rewriting import fuse, policy

pytestmark = pytest.mark.skipif(
    not has_all_majors(), reason="this build lacks kernels of some majors"
)
# None stays with XLA for being small, some do, all that nothing is fused with do.
LIMITS = (0, 4_500, 10**9)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Root mean square of the difference, over that of b."""
    return float(np.sqrt(np.mean((a - b) ** 2) / max(np.mean(b**2), 1e-6)))


# 58: a product that stays with XLA is read through a transpose by one that does not.
@pytest.mark.parametrize("seed", [*range(12), 58])
def test_same_results(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """No kernel runs: what is traced counts, and is then computed by XLA."""
    monkeypatch.setattr(fuse, "link_refusal", lambda *_: None)
    monkeypatch.setattr(policy, "SMALL_CYCLES", LIMITS[seed % len(LIMITS)])
    f, args = program(seed)
    want = jax.jit(f)(*args)
    with bw.config.target("sm90"), bw.config.linked_epilogues(seed % 4 != 3):
        got = jax.jit(bw.accelerate(f))(*args)
    exact, exact_args = program(seed, exact=True)
    true = jax.jit(exact)(*exact_args)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b, c in zip(*map(jax.tree.leaves, (got, want, true)), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        a, b, c = (np.float64(x) for x in (a, b, c))
        finite = np.isfinite(b) & np.isfinite(c)  # f16 overflows
        if finite.any():
            a, b, c = a[finite], b[finite], c[finite]
            assert distance(a, c) <= 1.5 * distance(b, c) + 0.01
