"""The FFI target of version 2, called as an exported program may: members, roles and refusals."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
from emulator_cases import requires_emulator
from kernel_table import described_scaled_grouped_kernels, described_scaled_kernels
from numerics import assert_exact

from jax_bwgemm import runtime
from jax_bwgemm.product import targets
from jax_bwgemm.product.kernels import Kernel

pytestmark = requires_emulator

ROLES = {"operands": "a b", "results": "d workspace"}
GROUPED_ROLES = {"operands": "a b group_sizes group_offset", "results": "d workspace"}


def first(contraction: str, arch: str = "") -> Kernel:
    """A kernel of the build: bf16, A and B with their columns contiguous."""
    a_major = "m" if contraction == "k_grouped" else "k"
    wanted = (contraction, "bfloat16", "bfloat16", a_major, "n", False)
    for k in runtime.kernel_table("emulator"):
        found = (k.contraction, k.a_dtype, k.out_dtype, k.a_major, k.b_major, k.stream_k)
        if found == wanted and arch in ("", k.arch):
            return k
    pytest.skip("the emulator was not built with such a kernel")


def call(
    arrays: tuple[np.ndarray, ...],
    outputs: tuple[tuple[tuple[int, ...], str], ...] = (((1, 64, 64), "bfloat16"), ((0,), "uint8")),
    target: str = targets.TARGETS["emulator"],
    **config: Any,
) -> np.ndarray:
    shapes = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in outputs)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return np.asarray(jax.ffi.ffi_call(target, shapes)(*arrays, config=config)[0])


def ones(*shape: int, dtype: str = "bfloat16") -> np.ndarray:
    return np.ones(shape, dtype)


A, B = ones(1, 64, 64), ones(1, 64, 64)
SIZES, OFFSET = np.array([[40, 24]], np.int32), np.zeros(1, np.int32)


def test_members_with_defaults_may_be_missing() -> None:
    out = call((A, B), kernel=first("dense").name, **ROLES)
    assert_exact(out, np.full((1, 64, 64), 64, "bfloat16"))


def test_buffers_follow_their_roles() -> None:
    b = B.copy()
    b[:, :, 1:] = 0
    swapped = {"operands": "b a", "results": "d workspace"}
    out = call((b, A), kernel=first("dense").name, **swapped)
    assert_exact(out, (A.astype(np.float32) @ b.astype(np.float32)).astype("bfloat16"))


@pytest.mark.parametrize(
    ("target", "roles"),
    [(targets.TARGETS["emulator"], GROUPED_ROLES), ("bwgemm.grouped.emulated.v1", {})],
)
def test_grouped_kernels_have_the_same_target(target: str, roles: dict[str, str]) -> None:
    kernel = first("m_grouped")
    scratch = runtime.emulated_grouped_workspace_bytes(kernel.name, 64, 64, 64, 2, 2, 1, 132)
    options: dict[str, Any] = {"order": "vertical", "swizzle": np.int64(3)}
    out = call(
        (A, ones(1, 2, 64, 64), SIZES, OFFSET),
        (((1, 64, 64), "bfloat16"), ((scratch,), "uint8")),
        target,
        kernel=kernel.name,
        **options,
        **roles,
    )
    assert_exact(out, np.full((1, 64, 64), 64, "bfloat16"))


def test_version_1_has_its_roles_fixed() -> None:
    name = first("dense").name
    config = {"kernel": name, "raster_order": "m", "swizzle": np.int64(2)}
    out = call((A, B), target="bwgemm.gemm.emulated.v1", **config)
    assert_exact(out, np.full((1, 64, 64), 64, "bfloat16"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="config member 'operands' is not known"):
        call((A, B), target="bwgemm.gemm.emulated.v1", **config, **ROLES)


TWO = (((1, 64, 64), "bfloat16"), ((0,), "uint8"))
REFUSALS: list[tuple[tuple[np.ndarray, ...], dict[str, Any], str]] = [
    ((A, B), {"scale_block": np.int64(32)}, "UNIMPLEMENTED: config member 'scale_block' is not"),
    ((A, B), {"swizzle": "2"}, "INVALID_ARGUMENT: config member 'swizzle': "),
    ((A, B), {"kernel": ""}, "INVALID_ARGUMENT: config has no member 'kernel'"),
    ((A, B), {"kernel": "sm90_none"}, "UNIMPLEMENTED: kernel 'sm90_none' is not in this build"),
    ((A, B), {"operands": ""}, "INVALID_ARGUMENT: config has no member 'operands'"),
    ((A, B), {"operands": "a scale_b"}, "UNIMPLEMENTED: operand 'scale_b' is not known"),
    ((A, B), {"operands": "a d"}, "UNIMPLEMENTED: operand 'd' is not known"),
    ((A, B), {"results": "d amax"}, "UNIMPLEMENTED: result 'amax' is not known"),
    ((A, B), {"operands": "a a"}, "INVALID_ARGUMENT: the call has a twice"),
    ((A, B), {"operands": "a"}, "INVALID_ARGUMENT: the call has 2 operands, their roles are 'a'"),
    ((A,), {}, "INVALID_ARGUMENT: the call has 1 operands, their roles are 'a b'"),
    ((A,), {"operands": "a"}, r"INVALID_ARGUMENT: kernel '.*' \(dense\) needs b"),
    (
        (A, B, SIZES),
        {"operands": "a b group_sizes"},
        r"INVALID_ARGUMENT: kernel '.*' \(dense\) takes no group_sizes",
    ),
    ((A, B), {"order": "vertical"}, r"INVALID_ARGUMENT: kernel '.*' \(dense\) has no order"),
    ((A, B), {"raster_order": "k"}, "raster_order 'k' is none of 'heuristic', 'm', 'n'"),
    ((A, B), {"swizzle": np.int64(3)}, "swizzle 3 is none of 1, 2, 4, 8, 16"),
    ((ones(1, 64, 64, dtype="float32"), B), {}, r"computes bfloat16 x .*float32\[1,64,64\]"),
    ((ones(1, 64, 64, dtype="int8"), B), {}, "a has none of the types bfloat16, float16, "),
    ((ones(64, 64), B), {}, r"a is bfloat16\[64,64\], expected rank 3"),
    ((ones(1, 32, 64), B), {}, r"operand a is bfloat16\[1,32,64\], expected bfloat16\[1,64,64\]"),
    ((ones(*[1] * 6, 64), B), {}, "a has rank 7, more than 6"),
    ((A, B), {"windows": "b:0"}, "windows 'b:0' are no words 'a:first:columns', of a, b or d"),
    ((A, B), {"windows": "b:0:x"}, "windows 'b:0:x' are no words"),
    ((A, B), {"windows": "b:0 32"}, "windows 'b:0 32' are no words"),
    ((A, B), {"windows": "b:0:32:a"}, "windows 'b:0:32:a' are no words"),
    ((A, B), {"windows": "workspace:0:8"}, "windows 'workspace:0:8' are no words"),
    ((A, B), {"windows": "b:8:64"}, r"no window 8:64 of b, bfloat16\[1,64,64\]"),
    ((A, B), {"windows": "b:-8:8"}, r"no window -8:8 of b"),
    ((A, B), {"windows": "b:0:0"}, r"no window 0:0 of b"),
    ((A, B), {"windows": "b:8:9223372036854775807"}, r"no window 8:9223372036854775807 of b"),
    ((A, B), {"windows": "b:0:32 b:0:16"}, r"no window 0:16 of b"),
    ((A,), {"operands": "a", "windows": "b:0:8"}, "no window 0:8 of b, which is not there"),
    ((A, B), {"windows": "b:4:32"}, "b is not aligned to 16 bytes"),
    ((A, B), {"windows": "d:0:32"}, "a window of d needs d's array as operand into"),
    (
        (A, B, A),
        {"operands": "a b into", "windows": "d:0:32"},
        "a window of d needs d's array as operand into",
    ),
    ((ones(1, 64, 0), ones(1, 0, 64)), {}, r"extent 0 of the problem .* is outside \[1, 2\^31\)"),
]


@pytest.mark.parametrize(("operands", "config", "message"), REFUSALS, ids=range(len(REFUSALS)))
def test_refusals(operands: tuple[np.ndarray, ...], config: dict[str, Any], message: str) -> None:
    whole = {"kernel": first("dense").name, **ROLES} | config
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        call(operands, **whole)


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
@pytest.mark.parametrize(
    ("operands", "window"), [((ones(1, 64, 12), ones(1, 8, 64)), "a"), ((A, ones(1, 64, 12)), "b")]
)
def test_rows_that_are_not_aligned(
    arch: str, operands: tuple[np.ndarray, np.ndarray], window: str
) -> None:
    columns = 8 if window == "b" else 64
    config = {"kernel": first("dense", arch).name, **ROLES, "windows": f"{window}:0:8"}
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"INVALID_ARGUMENT: .* 16 bytes"):
        call(operands, (((1, 64, columns), "bfloat16"), ((0,), "uint8")), **config)


def test_grids_that_do_not_fit() -> None:
    """SM100's kernels have the outer dimension of the tiles along y, and matrices along z."""
    name = first("dense", "sm100").name
    bytes_of = functools.partial(runtime.emulated_workspace_bytes, name, k=64, splits=1, sm_count=1)
    refused = functools.partial(pytest.raises, ValueError, match="65535 along y and z of a grid")
    for order in ("heuristic", "m", "n"):
        assert bytes_of(m=64, n=64, batch=1, raster_order=order) == 0
        with refused():
            bytes_of(m=64, n=64, batch=2**16, raster_order=order)
    for order in ("heuristic", "m"):
        with refused():
            bytes_of(m=64, n=2**24, batch=1, raster_order=order)
    assert bytes_of(m=64, n=2**24, batch=1, raster_order="n") == 0
    with refused():
        bytes_of(m=2**24, n=64, batch=1, raster_order="n")
    assert bytes_of(m=2**24, n=64, batch=1, raster_order="heuristic") == 0


WINDOW_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"splits": np.int64(2)}, "takes no window of d: parts of K are added there"),
    ({"splits": np.int64(0)}, r"splits 0 is outside \[1, "),
    ({"splits": np.int64(-1)}, r"splits -1 is outside \[1, "),
    ({"epilogue": "AAAA"}, "takes no window of d: an epilogue follows the product"),
    ({"windows": "d:0:32 d:0:16"}, "no window 0:16 of d"),
]


@pytest.mark.parametrize(("config", "message"), WINDOW_REFUSALS, ids=range(len(WINDOW_REFUSALS)))
def test_refusals_of_windows_of_the_result(config: dict[str, Any], message: str) -> None:
    """Where d has taken the place of the array that it belongs to."""
    shapes = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in TWO)
    call = jax.ffi.ffi_call(targets.TARGETS["emulator"], shapes, input_output_aliases={2: 0})
    whole = {"kernel": first("dense").name, **ROLES, "operands": "a b into", "windows": "d:0:32"}
    operands = (A, ones(1, 64, 32), A)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        got = np.asarray(call(*operands, config=whole)[0])
        assert_exact(got[:, :, :32], np.full((1, 64, 32), 64, "bfloat16"))
        assert_exact(got[:, :, 32:], A[:, :, 32:])
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            jax.block_until_ready(call(*operands, config=whole | config))


GROUPED_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"splits": np.int64(2)}, r"kernel '.*' \(m_grouped\) has no splits"),
    ({"raster_order": "m"}, r"kernel '.*' \(m_grouped\) has no raster_order"),
    ({"decomposition": "stream_k"}, r"kernel '.*' \(m_grouped\) has no decomposition"),
    ({"order": "k"}, "order 'k' is none of 'heuristic', 'horizontal', 'vertical'"),
    ({"swizzle": np.int64(65)}, r"swizzle 65 is outside \[1, 64\]"),
    ({"windows": "a:0:32"}, r"kernel '.*' \(m_grouped\) takes no windows"),
]


@pytest.mark.parametrize(("config", "message"), GROUPED_REFUSALS, ids=lambda x: str(x)[:40])
def test_refusals_of_grouped_kernels(config: dict[str, Any], message: str) -> None:
    whole = {"kernel": first("m_grouped").name, **GROUPED_ROLES} | config
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        call((A, ones(1, 2, 64, 64), SIZES, OFFSET), **whole)


def test_grouped_buffers_are_checked() -> None:
    whole = {"kernel": first("m_grouped").name, **GROUPED_ROLES}
    b = ones(1, 2, 64, 64)
    for operands, message in [
        ((A, B, SIZES, OFFSET), r"b is bfloat16\[1,64,64\], expected rank 4"),
        (
            (A, b, SIZES.astype(np.float32), OFFSET),
            r"group_sizes is float32\[1,2\], expected int32",
        ),
        ((A, b, SIZES, np.zeros(3, np.int32)), r"group_offset is int32\[3\], expected int32\[1\]"),
    ]:
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            call(operands, **whole)


def test_problems_whose_steps_do_not_fit_in_32_bits_are_refused() -> None:
    """2^20 groups in each of 2^17 batch elements were 2^32 steps of 32 groups: zero."""
    for contraction in ("m_grouped", "k_grouped"):
        name = first(contraction).name
        for groups, batch in ((2**20, 2**17), (2**31 - 1, 64)):
            with pytest.raises(ValueError, match="steps of 32 groups"):
                runtime.emulated_grouped_workspace_bytes(name, 8, 8, 8, groups, 1, batch, 132)
    # A group without rows has no tile: many groups of few rows are no reason to refuse.
    name = first("m_grouped").name
    assert runtime.emulated_grouped_workspace_bytes(name, 8, 2**20, 8, 2**25, 1, 1, 132) >= 0


def test_the_record_says_what_names_say() -> None:
    table = {k.name: k for k in runtime.kernel_table("emulator")}
    for k in (k for k in table.values() if not k.scales):
        grouped, gated = k.contraction in ("m_grouped", "k_grouped"), k.contraction == "gated"
        kind = {"m_grouped": "grouped_rows_", "k_grouped": "grouped_contract_"}
        short = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
        inputs = "_".join(short[t] for t in dict.fromkeys((k.a_dtype, k.b_dtype)))
        assert (k.terms > 1) == ("f32" in inputs)
        inputs += f"f16x{k.mmas}" if k.term_dtype == "float16" else f"x{k.mmas}" * k.splits_both
        types = "_".join([inputs, short[k.out_dtype], k.majors])
        tile = f"{k.tile_m}x{k.tile_n}x{k.tile_k}_{k.cluster_m}x{k.cluster_n}"
        schedule = "_pingpong" if k.schedule == "pingpong" else ""
        tail = f"_{k.schedule}" + ("_streamk" if k.stream_k else "") + ("_swap" * k.swap_ab)
        tail += "_gated" * gated
        if grouped:
            tail = "_swap" * k.swap_ab + schedule
        assert k.name == f"{k.arch}_{kind.get(k.contraction, '')}{types}_{tile}{tail}"
        assert k.a_dtype == k.b_dtype or {k.a_dtype, k.b_dtype} == {"bfloat16", "float32"}
        assert k.alignment_bytes == 16
        if k.f32_twin:
            twin = table[k.f32_twin]
            assert twin.out_dtype == "float32"
            assert (twin.tile_m, twin.tile_n, twin.schedule) == (k.tile_m, k.tile_n, k.schedule)
        uneven = k.contraction == "dense" and not k.stream_k and not k.cluster_k
        assert k.uneven_parts == (uneven and k.arch == "sm90")


SHORT = {
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "float4_e2m1fn": "e2m1",
    "bfloat16": "bf16",
    "float32": "f32",
}


def test_the_records_of_grouped_scaled_kernels_are_those_of_the_list() -> None:
    described = {k.name: k for k in described_scaled_grouped_kernels()}
    table = runtime.emulated_scaled_grouped_kernels()
    assert {k.name for k in table} == set(described)
    for k in table:
        assert dataclasses.replace(k, stages=described[k.name].stages) == described[k.name]


def test_the_records_of_scaled_kernels_are_those_of_the_list() -> None:
    described = {k.name: k for k in described_scaled_kernels()}
    table = runtime.emulated_scaled_kernels()
    assert {k.name for k in table} == set(described)
    for k in table:
        found = dataclasses.replace(described[k.name], stages=k.stages)
        assert found == k


def test_the_record_says_what_names_of_scaled_kernels_say() -> None:
    table = {k.name: k for k in runtime.emulated_scaled_kernels()}
    for k in table.values():
        types = "_".join(SHORT[t] for t in (k.a_dtype, k.b_dtype, k.out_dtype))
        tile = f"{k.tile_m}x{k.tile_n}x{k.tile_k}_{k.cluster_m}x{k.cluster_n}_{k.schedule}"
        assert k.name == f"{k.arch}_scaled_{types}_{k.scales}_{tile}{'_swap' * k.swap_ab}"
        assert (k.majors, k.alignment_bytes, k.uneven_parts) == ("kk", 16, k.arch == "sm90")
        twin = table.get(k.name.replace("_bf16_", "_f32_"))
        if k.scales == "mma" or twin is None:  # K is not split
            assert not k.f32_twin
            continue
        assert k.f32_twin == twin.name
        assert dataclasses.replace(k, name=twin.name, out_dtype="float32", stages=0) == (
            dataclasses.replace(twin, stages=0)
        )
