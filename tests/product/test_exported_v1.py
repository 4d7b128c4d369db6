"""Programs exported with version 1 of the FFI targets still run, and give the same bits.

data/exported_v1 holds programs that the last version with targets ``bwgemm.gemm.v1`` and
``bwgemm.grouped.v1`` serialised with jax 0.10.2: a plain product, one with K in two parts, a
stream-K one, and a grouped one with both gradients. They call kernels by name, so none of these may
vanish.
"""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from numerics import assert_exact, small_integers

import jax_bwgemm as bw

DATA = Path(__file__).parent / "data" / "exported_v1"
SHAPES = {
    "dense": ((48, 64), (64, 72)),
    "splits": ((128, 1024), (1024, 256)),
    "streamk": ((128, 1024), (1024, 256)),
    "grouped": ((96, 64), (4, 64, 48)),
}
SIZES = np.array([40, 0, 17, 30], np.int32)  # the last rows belong to no group


def dense(x: jax.Array, y: jax.Array) -> jax.Array:
    return bw.matmul(x, y, implementation="xla")


def grouped(x: jax.Array, y: jax.Array, sizes: jax.Array) -> tuple[jax.Array, ...]:
    """What the exported program computes: the product, and two gradients."""
    product = functools.partial(bw.ragged_dot, group_sizes=sizes, implementation="xla")

    def loss(x: jax.Array, y: jax.Array) -> jax.Array:
        return (product(x, y).astype(jnp.float32) ** 2).sum()

    return product(x, y), *jax.grad(loss, (0, 1))(x, y)


def check(name: str) -> None:
    kind = name.split("_")[0]
    rng = np.random.default_rng(0)
    operands = [small_integers(rng, shape, jnp.bfloat16) for shape in SHAPES[kind]]
    if kind == "grouped":
        operands.append(SIZES)
    program = jax.export.deserialize(bytearray((DATA / f"{name}.bin").read_bytes()))
    got = jax.jit(program.call)(*operands)
    want = jax.jit(grouped if kind == "grouped" else dense)(*operands)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_exact(one, other, name)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(f"{kind}_{arch}_cpu", marks=requires_emulator)
        for kind in SHAPES
        for arch in ("sm90", "sm100")
    ],
)
def test_emulated(name: str) -> None:
    check(name)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("kind", SHAPES)
def test_on_a_gpu(kind: str) -> None:
    check(f"{kind}_sm90_cuda")


def test_programs_of_version_1_may_be_exported_again() -> None:
    for target in ("bwgemm.gemm.v1", "bwgemm.grouped.v1"):
        check = jax.export.DisabledSafetyCheck.custom_call(target)
        assert check in bw.DISABLE_EXPORT_CHECKS
