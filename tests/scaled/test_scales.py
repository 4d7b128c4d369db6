"""Scales at the edges of what float32 and powers of two hold, and those of batches."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_exact

import jax_bwgemm as bw


@pytest.mark.parametrize("scaling", ["tensor", "1x128", "mxfp8", "mxfp4"])
def test_a_scale_that_is_a_power_of_two_is_not_rounded(scaling: str) -> None:
    largest = 6 if scaling == "mxfp4" else 448
    q = bw.quantize(jnp.full((128, 128), 4.0 * largest), scaling, power_of_two=True)
    assert_exact(q.scales.astype(jnp.float32), np.full(q.scales.shape, 4, np.float32))
    assert_exact(q.values.astype(jnp.float32), np.full((128, 128), largest, np.float32))


def test_a_global_scale_is_never_subnormal() -> None:
    """Its reciprocal would be infinite where a processor counts it as zero."""
    tiny = np.finfo(np.float32).tiny
    q = bw.quantize(jnp.full((16, 32), 6 * tiny), "nvfp4")
    assert q.global_scale == tiny
    assert_exact(bw.dequantize(q), np.full((16, 32), 6 * tiny))


def test_one_scale_for_each_matrix_of_two_batch_dimensions() -> None:
    values = jnp.ones((2, 3, 4, 16), jnp.float8_e4m3fn)
    scales = jnp.arange(1.0, 7.0).reshape(2, 3)
    got = bw.dequantize(bw.ScaledArray(values, scales, "tensor"))
    assert_exact(got, np.broadcast_to(scales[..., None, None], values.shape))
    with pytest.raises(TypeError, match=r"must have shape \(\) or \(2, 3\), got \(2,\)"):
        bw.ScaledArray(values, scales[:, 0], "tensor")
