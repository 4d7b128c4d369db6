"""Older names of configuration fields, which programs still use."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jax_bwgemm as bw
from jax_bwgemm.grouped.grouped_config import MAX_SWIZZLE
from jax_bwgemm.product.kernels import Kernel


@pytest.mark.parametrize(
    ("cls", "older", "newer"),
    [
        (bw.TuningConfig, {"max_concurrent_steps": 4}, {"stages": 4}),
        (bw.TuningConfig, {"collective": True}, {"two_cta": True}),
        (bw.TuningConfig, {"grid_minor_dim": "m"}, {"raster_order": "m"}),
        (bw.TuningConfig, {"grid_tile_width": 8}, {"swizzle": 8}),
        (bw.GroupedConfig, {"order": "heuristic"}, {"raster_order": "heuristic"}),
        (bw.GroupedConfig, {"order": "horizontal"}, {"raster_order": "n"}),
        (bw.GroupedConfig, {"order": "vertical"}, {"raster_order": "m"}),
    ],
)
def test_older_names_mean_the_same(cls: Any, older: dict, newer: dict) -> None:
    assert cls(**older) == cls(**newer)
    assert hash(cls(**older)) == hash(cls(**newer))
    assert str(cls(**older)) == str(cls(**newer))
    (field,) = newer
    assert field in str(cls(**older))
    with pytest.raises(TypeError) as caught:
        cls(**older, **newer)
    (old,) = older
    assert str(caught.value) == f"{cls.__name__}: {old} is an older name of {field}: give one"


@pytest.mark.parametrize("cls", [bw.TuningConfig, bw.GroupedConfig])
def test_unknown_fields_are_refused(cls: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'epilogue_tile_n'"):
        cls(epilogue_tile_n=64)


def test_the_largest_clusters_are_allowed() -> None:
    for cluster in ((4, 4), (16, 1), (2, 8)):
        assert bw.TuningConfig(cluster_m=cluster[0], cluster_n=cluster[1])


def test_the_highest_bands_are_allowed() -> None:
    assert bw.GroupedConfig(swizzle=MAX_SWIZZLE).swizzle == MAX_SWIZZLE
    with pytest.raises(ValueError, match=f"swizzle must be at most {MAX_SWIZZLE}, got"):
        bw.GroupedConfig(swizzle=MAX_SWIZZLE + 1)


@pytest.mark.parametrize("cls", [bw.TuningConfig, bw.GroupedConfig])
@pytest.mark.parametrize("field", [{"cluster_m": True}, {"swap_ab": 1}, {"swap_ab": 0}], ids=str)
def test_truth_is_no_number(cls: Any, field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        cls(**field)


@pytest.mark.parametrize(
    ("cls", "field"),
    [
        (bw.TuningConfig, {"swizzle": 8.0}),
        (bw.TuningConfig, {"cluster_m": 2.0}),
        (bw.TuningConfig, {"swizzle": np.arange(2)}),
        (bw.TuningConfig, {"tile_m": 64.0}),
        (bw.GroupedConfig, {"swizzle": 8.0}),
        (bw.GroupedConfig, {"cluster_n": 1.0}),
    ],
    ids=str,
)
def test_only_integers_are_integers(cls: Any, field: dict[str, Any]) -> None:
    """What passed here would be an error of the compiled modules, which names no field."""
    (name,) = field
    with pytest.raises(ValueError, match=f"{cls.__name__}: {name} must be (one of 1, |an int or)"):
        cls(**field)


@pytest.mark.parametrize("cls", [bw.TuningConfig, bw.GroupedConfig])
def test_every_property_of_a_kernel_is_compared(cls: Any) -> None:
    kernel = Kernel.of_tile("sm90", (128, 256, 64), (2, 1), "cooperative")
    others = {
        "kernel": "another",
        "tile_m": 64,
        "tile_n": 128,
        "tile_k": 128,
        "cluster_m": 1,
        "cluster_n": 2,
        "stages": 5,
        "schedule": "pingpong",
        "swap_ab": True,
    }
    for field, other in others.items():
        own = getattr(kernel, "name" if field == "kernel" else field)
        assert cls(**{field: own}).mismatch(kernel) is None
        assert cls(**{field: other}).mismatch(kernel) == f"{field} is {own!r}, not {other!r}"


@pytest.mark.parametrize(("terms", "mmas"), [(1, 1), (2, 3), (3, 6)])
def test_products_of_small_terms_are_left_out(terms: int, mmas: int) -> None:
    plain = Kernel.of_tile("sm90", (128, 256, 64), (2, 1), "cooperative")
    one = dataclasses.replace(plain, a_dtype="float32", terms=terms)
    assert one.mmas == terms  # beside bf16, which is not split
    assert dataclasses.replace(one, b_dtype="float32").mmas == mmas


def test_a_configuration_of_the_other_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="config must be a TuningConfig, a kernel name or None"):
        bw.matmul(jnp.ones((8, 8)), jnp.ones((8, 8)), config=bw.GroupedConfig(stages=4))
