"""The grouped half of sanitize_linked.py: every form and kind of epilogue of m-grouped kernels.

Sizes are known on the device only, as in sanitize_grouped.py: negative ones, empty groups, one
that runs past the last row; and experts for a part of the groups. No row of another group may be
read or written, and rows of no group have the function of zero.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes  # noqa: F401  (numpy then knows the types by name)
import numpy as np
from linked_functions import (
    KINDS,
    Composed,
    Operand,
    chain,
    random_operands,
    random_operations,
)

OFFSET = 1  # group that the first expert belongs to
EXPERTS = 4
FORMS = ("", "gated", "halves")

# name -> operands, those of groups (a value or a row for each matrix), number of results.
# "16 bits" is the type of the product.
EPILOGUES: dict[str, tuple[tuple[Operand, ...], tuple[Operand, ...], int]] = {
    "weights of rows": ((("column", "float32"),), (), 1),
    "bias of groups, silu": ((), (("row", "bfloat16"), ("value", "float32")), 1),
    "activation and product": ((("column", "bfloat16"),), (), 2),
    "derivative": ((("column", "float32"), ("matrix", "16 bits")), (), 1),
    "two of all": (
        (("matrix", "16 bits"), ("matrix", "float32")),
        (("row", "float32"), ("row", "float16")),
        2,
    ),
    "every kind of result": (
        (("scalar", "float32"), ("matrix", "int32"), ("row", "bfloat16")),
        (),
        4,
    ),
}


@dataclasses.dataclass(frozen=True)
class GroupedLinkedCase:
    """One launch.

    Attributes:
        kernel: Name of the kernel.
        arch: Its architecture.
        dtype: Type of A, B and D.
        form: "gated" of two products side by side, "halves" with two results side by side.
        transposed: Whether the kernel reads matrices as [E, N, K].
        operands: Kind and type of each operand of the epilogue.
        of_groups: The same of those that have a value or a row for each matrix.
        operations: As of `Composed`.
        results: How many matrices it returns.
        sums: 1 if it returns a sum over columns besides.
        m, n, k: Sizes; n of each product.
        sizes: Rows of each group, as the device gets them.
        seed: Of the operands.
    """

    kernel: str
    arch: str
    dtype: str
    form: str
    transposed: bool
    operands: tuple[Operand, ...]
    of_groups: tuple[Operand, ...]
    operations: tuple[int, ...]
    results: int
    sums: int
    m: int
    n: int
    k: int
    sizes: tuple[int, ...]
    seed: int = 0

    def __str__(self) -> str:
        operands = [f"{dtype}:{kind}" for kind, dtype in self.operands]
        operands += [f"{dtype}:{kind} of groups" for kind, dtype in self.of_groups]
        return (
            f"{self.kernel} {self.m}x{self.n}x{self.k} {self.form or 'plain'} "
            f"({', '.join(operands)}) {len(self.operations)} operations, {self.results} results, "
            f"{self.sums} sums, sizes {','.join(map(str, self.sizes))}, seed {self.seed}"
        )

    def function(self, *, terms: bool) -> Composed:
        """The epilogue, with sums or their terms."""
        kinds = ("float32", "float32" if self.form else "int32", "float32", "float32")
        return Composed(self.operations, kinds[: self.results], self.sums, axis=1, terms=terms)

    def whole(self, z: Any, *given: Any) -> list[Any]:
        """What the call returns, in terms of the product."""
        import jax.numpy as jnp

        factor = 2 if self.form == "gated" else 1
        parts = jnp.split(z.astype(jnp.float32), factor, axis=-1)
        found = self.function(terms=False)(*parts, *given)
        if self.form == "halves":
            found[:2] = [jnp.concatenate(found[:2], axis=-1)]
        return found

    def given(self) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
        """A and B, the epilogue's operands, those of groups. B is [E, K, N]."""
        rng = np.random.default_rng(self.seed)
        columns = 2 * self.n if self.form == "gated" else self.n
        shapes = {"row": (self.n,), "column": (self.m, 1), "scalar": (), "matrix": (self.m, self.n)}
        of_groups = {"row": (EXPERTS, self.n), "value": (EXPERTS,)}

        def array(shape: tuple[int, ...], dtype: str) -> np.ndarray:
            return np.asarray(rng.integers(-2, 3, shape)).astype(dtype)

        a, b = array((self.m, self.k), self.dtype), array((EXPERTS, self.k, columns), self.dtype)
        plain = [array(shapes[kind], dtype) for kind, dtype in self.operands]
        return [a, b], plain, [array(of_groups[kind], dtype) for kind, dtype in self.of_groups]

    def compiled(self, implementation: str) -> Callable[..., Any]:
        """The kernel, linked: a function of A, B, sizes, offset and lists of the operands.

        Raises:
            ValueError: The kernel does not take the epilogue along.
        """
        import jax

        import jax_bwgemm as bw
        from jax_bwgemm.epilogue.apply import Epilogue
        from jax_bwgemm.grouped.api import ragged_dot_with_epilogue
        from jax_bwgemm.grouped.with_epilogue import After, EpilogueOperands

        numbers = jax.lax.RaggedDotDimensionNumbers(
            dot_dimension_numbers=(((1,), (2 if self.transposed else 1,)), ((), ())),
            lhs_ragged_dimensions=[0],
            rhs_group_dimensions=[0],
        )

        def product(a: Any, b: Any, sizes: Any, offset: Any, plain: Any, of_groups: Any) -> Any:
            after = After(
                Epilogue(self.function(terms=True), "sanitize_linked"),
                EpilogueOperands(tuple(plain), tuple(of_groups)),
                gated=self.form == "gated",
                only_linked=True,
                halves=self.form == "halves",
                sums=self.sums > 0,
                by_xla=self.whole,
            )
            return ragged_dot_with_epilogue(
                a, b, sizes, numbers, after, group_offset=offset,
                implementation=implementation, config=self.kernel,
            )  # fmt: skip

        (a, b), *rest = self.given()
        b = b.swapaxes(1, 2) if self.transposed else b
        sizes = np.asarray(self.sizes, np.int32)
        with contextlib.ExitStack() as stack:
            stack.enter_context(bw.config.linked_epilogues(True))
            if implementation == "emulator":
                stack.enter_context(bw.config.target(self.arch, 4))
            # As JAX's arrays: numpy's sizes would be checked.
            lowered = jax.jit(product).lower(a, b, jax.numpy.asarray(sizes), np.int32(0), *rest)
            if "epilogue_digest" not in lowered.as_text():
                raise ValueError(f"not linked: {self}")
            return lowered.compile()

    def is_exact(self, implementation: str) -> bool:
        """Launches it in this process and compares."""
        import jax

        (a, b), plain, of_groups = self.given()
        product, rows = self.expected(a, b, of_groups)
        wanted = jax.jit(self.whole)(product, *plain, *rows)
        b = b.swapaxes(1, 2) if self.transposed else b
        sizes = jax.numpy.asarray(self.sizes, jax.numpy.int32)
        got = self.compiled(implementation)(a, b, sizes, np.int32(OFFSET), plain, of_groups)
        pairs = zip(jax.device_get(got), jax.device_get(wanted), strict=True)
        return all(np.array_equal(x, y.astype(x.dtype)) for x, y in pairs)

    def expected(
        self, a: np.ndarray, b: np.ndarray, of_groups: list[np.ndarray]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """The product in f32, and each row's operands of groups."""
        a, b = a.astype(np.float32), b.astype(np.float32)
        product = np.zeros((self.m, b.shape[2]), np.float32)
        rows = [np.zeros((self.m, *(x.shape[1:] or (1,))), x.dtype) for x in of_groups]
        ends = np.minimum(np.cumsum(np.maximum(self.sizes, 0)), self.m)
        starts = np.concatenate([[0], ends[:-1]])
        spans = zip(starts[OFFSET:], ends[OFFSET:], strict=True)
        for expert, (start, end) in zip(range(EXPERTS), spans, strict=False):
            product[start:end] = a[start:end] @ b[expert]
            for x, given in zip(rows, of_groups, strict=True):
                x[start:end] = given[expert]
        return product, rows


def forms_of(kernel: object) -> tuple[str, ...]:
    """Forms of epilogues that a kernel takes."""
    from jax_bwgemm.epilogue.grouped_hook import gated_symbol
    from jax_bwgemm.epilogue.linkable import linkable_kernels

    gated = gated_symbol(kernel.name) in linkable_kernels()
    missing = ([] if gated else ["gated"]) + (["halves"] if kernel.arch == "sm100" else [])
    return tuple(form for form in FORMS if form not in missing)


def cases(arch: str, pattern: str) -> list[GroupedLinkedCase]:
    """Every epilogue in every tile; two products; two results as one and a sum over columns."""
    from jax_bwgemm import runtime
    from jax_bwgemm.epilogue.linkable import linkable_kernels

    names = linkable_kernels()
    kernels = [k for k in runtime.grouped_kernels() if k.name in names and k.arch == arch]
    kernels = [k for k in kernels if re.search(pattern, k.name) and k.a_dtype == "bfloat16"]
    return [case for kernel in kernels for case in _of_kernel(kernel)]


def _of_kernel(kernel: Any) -> list[GroupedLinkedCase]:
    rows, columns = kernel.tile_n, kernel.tile_m  # of swapped operands
    m, n, k = 2 * rows + 41, 2 * columns + 24, (kernel.stages + 2) * kernel.tile_k + 8
    sizes = 5, 0, rows + 9, -3, 1, 10 * m
    transposed, forms = kernel.b_major == "k", forms_of(kernel)

    def case(form: str, kinds: Any, of_groups: Any, results: int, sums: int = 0) -> Any:
        types = {"16 bits": kernel.out_dtype}
        operands = tuple((kind, types.get(dtype, dtype)) for kind, dtype in kinds)
        operations = chain(len(operands) + len(of_groups) + (form == "gated"))
        return GroupedLinkedCase(
            kernel.name, kernel.arch, kernel.a_dtype, form, transposed, operands, of_groups,
            operations, results, sums, m, n, k, sizes,
        )  # fmt: skip

    staged = (("matrix", "16 bits"), ("matrix", "16 bits"), ("column", "float32"))
    found = [case("", staged, (), 1, sums=int("halves" in forms))]
    if "halves" in forms:
        found.append(case("halves", staged, (), 2, sums=1))
    if not transposed:  # gradients read matrices so, forward passes do not
        found += [case("", *kinds) for kinds in EPILOGUES.values()]
        if "gated" in forms:
            found += [case("gated", staged[1:], (), results) for results in (1, 3)]
    return found


def random_case(
    rng: np.random.Generator, kernel: Any, m: int, n: int, k: int, seed: int
) -> GroupedLinkedCase:
    """A random epilogue of a random form, with random groups."""
    form = str(rng.choice(forms_of(kernel)))
    operands = random_operands(rng, KINDS, 4)
    of_groups = random_operands(rng, ("row", "value"), 3)
    results = int(rng.integers(2 if form == "halves" else 1, 4))
    sums = int(rng.integers(2)) if kernel.arch == "sm90" else 0
    sizes = tuple(int(x) for x in rng.integers(-9, m // 2 + 9, EXPERTS + 2))
    return GroupedLinkedCase(
        kernel.name, kernel.arch, kernel.a_dtype, form, kernel.b_major == "k", tuple(operands),
        tuple(of_groups), random_operations(rng), results, sums, m, n, k, sizes,
        seed,
    )  # fmt: skip
