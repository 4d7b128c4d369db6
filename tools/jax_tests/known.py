"""Differences that are expected: tests of JAX's own text, each with its reason."""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Known:
    """A test that fails with our functions and cannot do otherwise.

    Attributes:
        file: File of JAX's tests, without .py.
        test: Regular expression that the whole ``Class::name`` matches.
        message: Regular expression found in type and first line of its error.
        reason: Why it cannot pass.
    """

    file: str
    test: str
    message: str
    reason: str


KNOWN: tuple[Known, ...] = (
    Known(
        "batching_test",
        "BatchingTest::testNestedBatchingMatMat",
        "AssertionError: .*reshape",
        "counts the equations of a jaxpr, where ours has reshapes around the product",
    ),
    Known(
        "lax_test",
        r"RaggedTest::test_ragged_dot_general_shape_inference_failure\d+",
        'AssertionError: ".*" does not match "ragged_dot_general ',
        "looks for the words of JAX's message; ours says the same with the shapes",
    ),
    Known(
        "lax_numpy_test",
        r"LaxBackedNumpyTests::testMatmulBothSize1BatchDimsSqueezedJaxpr\d*",
        "ValueError: not enough values to unpack",
        "looks for an equation dot_general in a jaxpr, where ours is bw_gemm",
    ),
    Known(
        "lax_numpy_test",
        r"LaxBackedNumpyTests::testMixedPrecisionDot\d*",
        r"AssertionError: \[reshape, reshape, bw_gemm, reshape\] not found in \[\[dot_general\]",
        "compares the equations of a jaxpr",
    ),
    Known(
        "lax_numpy_einsum_test",
        r"EinsumTest::test_einsum_mixed_precision\d*",
        "AssertionError: .*bw_gemm.* not found in .*dot_general",
        "compares the names of a jaxpr's equations",
    ),
    Known(
        "lax_numpy_einsum_test",
        "EinsumTest::test_preferred_element_type",
        "AssertionError: .*reshape",
        "counts the equations of a jaxpr, where ours has reshapes around the product",
    ),
    Known(
        "pjit_test",
        "ShardingInTypesTest::test_auto_user",
        "AssertionError: False is not true",
        "counts the sharding constraints of a lowered module; our reshapes have some too",
    ),
)


def reason(file: str, test: str, message: str, known: tuple[Known, ...] = KNOWN) -> str | None:
    """Why a difference is expected; None when it is not."""
    for entry in known:
        here = entry.file == file and re.fullmatch(entry.test, test)
        if here and re.search(entry.message, message):
            return entry.reason
    return None
