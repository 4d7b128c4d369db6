"""`autocast(only=)`: which layers stay in 16 bits, by what is predicted of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from autocast_cases import F32, D, F, T, V, W, X, cast, sized, why
from jax import lax

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.rewriting import autocast
from jax_bwgemm.rewriting.autocast import LayerProduct
from jax_bwgemm.scaled.layer_costs import LayerSizes, LayerTypes, speedup
from jax_bwgemm.scaled.recipes import as_recipe


def test_only() -> None:
    found = []

    def model(x: Any, w: Any, v: Any) -> Any:
        with jax.named_scope("mlp"):
            h = jnp.tanh(x @ w)
            with jax.named_scope("down"):
                return lax.map(lambda row: row @ v, h[None])[0]

    def only(product: LayerProduct) -> bool:
        found.append(product)
        return product.scope == "mlp"

    assert cast(model, X, W, V, only=only) == [True, False]
    assert found == [LayerProduct("mlp", T, F, D), LayerProduct("mlp/down", T, D, F)]
    decisions = bw.explain_program(bw.autocast(model, only=only), X, W, V).rewrites
    assert decisions[1].reason == "`only` leaves it out"


def test_only_where_it_is_faster() -> None:
    wide, narrow = (sized(8192, 4096), sized(4096, 14336)), (sized(16384, 768), sized(768, 768))
    layer = bw.autocast(jnp.matmul, "blockwise_2d", only="faster")
    (one,) = bw.explain_program(layer, *wide, device="sm90").rewrites
    assert one.rewritten
    assert one.reason.startswith("recipe 'blockwise_2d', predicted to be 1.")
    assert one.reason.endswith(" times as fast as 16 bits")
    reason = why(jnp.matmul, *narrow, recipe="blockwise_2d", only="faster")
    assert "recipe 'blockwise_2d' is predicted to take 1." in reason
    assert "times as long as 16 bits, quantization included" in reason
    # Few rows for each expert: quantizing the matrices takes more than the products save.
    experts = lambda x, w: lax.ragged_dot(x, w, jnp.full(w.shape[0], 512))  # noqa: E731
    few, many = (
        (sized(32768, 2048), sized(64, 2048, 1024)),
        (sized(32768, 4096), sized(8, 4096, 7168)),
    )
    assert cast(experts, *few, only="faster") == [False]
    assert cast(experts, *many, only="faster") == [True]
    # A batch of matrices counts as a whole.
    batch = (sized(4, 4096, 4096), sized(4, 4096, 4096))
    layer = lambda x, w: jnp.matmul(jnp.sort(x), w)  # noqa: E731
    assert cast(layer, *batch, only="faster") == [True]


@pytest.mark.parametrize("options", [{"recipe": "mxfp8"}, {"implementation": "xla"}])
def test_what_no_kernel_computes_is_not_faster(options: dict[str, Any]) -> None:
    layer = (jnp.matmul, sized(8192, 4096), sized(4096, 14336))
    assert "there is no kernel for a product of" in why(*layer, only="faster", **options)
    assert cast(*layer, **options) == [True]


def test_no_layer_is_faster_on_a_gpu_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def gpu(capability: str) -> SimpleNamespace:
        return SimpleNamespace(
            platform="gpu", device_kind="GPU", compute_capability=capability, core_count=132
        )

    layer = (sized(8192, 4096), sized(4096, 14336))

    def casts() -> int:
        f = bw.autocast(lambda x, w: x @ w, only="faster")
        return str(jax.make_jaxpr(f)(*layer)).count("bw_scaled_matmul[")

    assert casts() == 1  # no GPU: as on a Hopper
    monkeypatch.setattr(runtime, "cuda_devices", lambda: [gpu("8.0"), gpu("8.0")])
    assert casts() == 0
    with bw.config.target("sm90"):
        assert casts() == 1
    monkeypatch.setattr(runtime, "cuda_devices", lambda: [gpu("8.0"), gpu("9.0")])
    assert casts() == 1


def test_the_prediction_is_there_to_decide_by() -> None:
    found: list[LayerProduct] = []
    wide, narrow = (sized(8192, 4096), sized(4096, 14336)), (sized(16384, 768), sized(768, 768))
    for layer in (wide, narrow):
        cast(jnp.matmul, *layer, only=lambda product: found.append(product) or True)
    fast, slow = found
    assert slow.speedup < 1 < fast.speedup < 2


def products_of(f: Callable[..., Any], *args: Any, **options: Any) -> list[LayerProduct]:
    """What `only` is asked about."""
    found: list[LayerProduct] = []
    layer = bw.autocast(f, only=lambda product: bool(found.append(product)), **options)
    with bw.config.target("sm90"):
        jax.make_jaxpr(layer)(*args)
    return found


def predicted(
    sizes: LayerSizes, result: str = "bfloat16", rows: str = "bfloat16", weights: str = "bfloat16"
) -> float:
    target = bw.config.make_target("sm90")
    types = LayerTypes(rows, weights, result)
    return speedup(as_recipe("blockwise"), sizes, types, "cutlass", target)


def test_what_is_predicted_is_this_layer() -> None:
    x, w, few = sized(8192, 2048), sized(2048, 1024), sized(8, 2048, 1024)
    (one,) = products_of(jnp.matmul, x, w)
    assert one.speedup == predicted(LayerSizes(8192, 1024, 2048))
    to_f32 = lambda x, w: jnp.matmul(x, w, preferred_element_type=F32)  # noqa: E731
    (one,) = products_of(to_f32, x, w)
    assert (
        one.speedup
        == predicted(LayerSizes(8192, 1024, 2048), "float32")
        != predicted(LayerSizes(8192, 1024, 2048))
    )
    (one,) = products_of(lambda x, w: lax.ragged_dot(x, w, jnp.full(8, 1024)), x, few)
    assert one.speedup == predicted(LayerSizes(8192, 1024, 2048, 8, grouped=True))
    batch = (sized(3, 8192, 2048), sized(3, 2048, 1024))
    (one,) = products_of(lambda x, w: jnp.matmul(jnp.sort(x), w), *batch)
    assert one == LayerProduct("", 8192, 1024, 2048)
    assert one.speedup == predicted(LayerSizes(8192, 1024, 2048, 3))
    # The weight on the left: the same layer, also where types are mixed.
    half = jax.ShapeDtypeStruct((1024, 2048), jnp.float16)
    (one,) = products_of(lambda w, x: to_f32(w, jnp.sort(x).T), half, x)
    assert one == LayerProduct("", 8192, 1024, 2048)
    sizes = LayerSizes(8192, 1024, 2048)
    assert one.speedup == predicted(sizes, "float32", weights="float16")
    assert one.speedup != predicted(sizes, "float32", rows="float16")
    left = (sized(3, 1024, 2048), sized(3, 2048, 8192))
    (one,) = products_of(lambda w, x: jnp.matmul(w, jnp.sort(x)), *left)
    assert one == LayerProduct("", 8192, 1024, 2048)


def test_the_first_implementation_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = (jnp.matmul, sized(8192, 4096), sized(4096, 14336))
    assert "there is no kernel" in why(*layer, only="faster", implementation=("xla", "cutlass"))
    asked: list[str] = []
    monkeypatch.setattr(autocast, "speedup", lambda *args: asked.append(args[3]) or 1.0)
    reason = why(*layer, only="faster", implementation=("emulator", "xla"))
    assert "1.00 times as long" in reason  # no gain is no reason to lose accuracy
    assert asked == ["emulator"]


def test_an_unhashable_function_decides() -> None:
    @dataclasses.dataclass
    class Only:
        names: list[str]

        def __call__(self, product: LayerProduct) -> bool:
            return product.scope in self.names

    def model(x: Any, w: Any, v: Any) -> Any:
        with jax.named_scope("up"):
            h = x @ w
        with jax.named_scope("down"):
            return jnp.tanh(h) @ v

    assert cast(model, X, W, V, only=Only(["down"])) == [False, True]


@pytest.mark.parametrize("only", [None, "faster"])
def test_sizes_that_may_be_zero(only: str | None) -> None:
    (k,) = jax.export.symbolic_shape("k-1")
    for left, right in (((4096, k), (k, 4096)), ((k, 256, 256), (k, 256, 256))):
        layer = lambda x, w: jnp.matmul(jnp.sort(x), w)  # noqa: E731
        assert why(layer, sized(*left), sized(*right), only=only) == "sizes are symbolic"
    ragged = lambda x, w: lax.ragged_dot(x, w, jnp.zeros(0, jnp.int32))  # noqa: E731
    assert why(ragged, X, sized(0, D, F), only=only) == "it has no matrix"
