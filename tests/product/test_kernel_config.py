"""Older names of configuration fields, which programs still use."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import jax_bwgemm as bw


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


def test_a_configuration_of_the_other_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="config must be a TuningConfig, a kernel name or None"):
        bw.matmul(jnp.ones((8, 8)), jnp.ones((8, 8)), config=bw.GroupedConfig(stages=4))
