"""Recipes: which layouts and types the three products of a layer have. Pure."""

from __future__ import annotations

import dataclasses

from jax_bwgemm.product.arguments import as_dtype, as_flag
from jax_bwgemm.scaled.layouts import FLOAT32, layout_of
from jax_bwgemm.scaled.spec import ACCUMULATIONS

E4M3, E5M2, E2M1 = "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a layer trains in low precision.

    Attributes:
        lhs: Layout of the left operand, a layer's activations.
        rhs: Layout of the right operand, a layer's weights.
        gradient: Layout of the result's cotangent.
        dtype: Type of both operands' values, one that their layouts have: its name, or what NumPy
            makes a type of.
        gradient_dtype: Type of the cotangent's values, likewise.
        power_of_two: Whether f32 scales are rounded up to powers of two.
        forward_accumulation: That of the forward product, as in `scaled_matmul`.
        gradient_accumulation: That of both gradients' products.
        history: Steps that delayed scaling looks back, of three layouts ``"tensor"``: an operand's
            scale is that of the largest magnitude in so many steps before. 0: an operand's own.
        square_rhs: Whether as many rows as columns of the weights share a scale, so that both
            passes multiply by the same numbers. Of ``mxfp8`` and ``nvfp4``.
        hadamard: Whether the operands of the weights' gradient are rotated along what is
            contracted, by Hadamard matrices of 16 x 16 with random signs: outliers are spread.
        stochastic_gradient: Whether the cotangent is rounded stochastically.

    Raises:
        TypeError: What is no type, or none of a layout's; what is neither True nor False.
        ValueError: An unknown layout or accumulation; square blocks of weights with f32 scales;
            delayed scaling of another layout than ``"tensor"``, or with rotations or stochastic
            rounding; a history that is no number of steps.
    """

    lhs: str
    rhs: str
    gradient: str
    dtype: str = E4M3
    gradient_dtype: str = E4M3
    power_of_two: bool = False
    forward_accumulation: str = "promoted"
    gradient_accumulation: str = "promoted"
    history: int = 0
    square_rhs: bool = False
    hadamard: bool = False
    stochastic_gradient: bool = False

    def __str__(self) -> str:
        """Its name, if it has one."""
        return next((f"recipe {n!r}" for n, r in RECIPES.items() if r == self), repr(self))

    @property
    def needs_key(self) -> bool:
        """Whether gradients depend on random numbers."""
        return self.hadamard or self.stochastic_gradient

    def __post_init__(self) -> None:
        for name, dtype in (("lhs", "dtype"), ("rhs", "dtype"), ("gradient", "gradient_dtype")):
            layout = layout_of(getattr(self, name), f"Recipe: {name}")
            found = as_dtype("Recipe", dtype, getattr(self, dtype))
            if found not in layout.value_dtypes:
                known = ", ".join(str(d) for d in layout.value_dtypes)
                raise TypeError(
                    f"Recipe: {name}={layout.name!r} has values of type {known}, got "
                    f"{dtype}={found}"
                )
            object.__setattr__(self, dtype, found.name)  # recipes are compared by value
        for name in ("forward_accumulation", "gradient_accumulation"):
            if getattr(self, name) not in ACCUMULATIONS:
                raise ValueError(
                    f"Recipe: {name} must be 'promoted' or 'fast', got {getattr(self, name)!r}"
                )
        for name in ("power_of_two", "square_rhs", "hadamard", "stochastic_gradient"):
            as_flag("Recipe", name, getattr(self, name))
        if self.square_rhs and layout_of(self.rhs).scale_dtype == FLOAT32:
            raise ValueError(
                f"Recipe: square_rhs is of layouts with scales of 8 bits, not {self.rhs!r}"
            )
        history = self.history
        is_number = isinstance(history, int) and not isinstance(history, bool)
        if not (is_number and 0 <= history < 2**31):
            raise ValueError(f"history must be a number of steps below 2^31, got {history!r}")
        if self.history and {self.lhs, self.rhs, self.gradient} != {"tensor"}:
            raise ValueError("delayed scaling needs 'tensor' layouts: a history has no blocks")
        if history and self.needs_key:
            raise ValueError("delayed scaling has neither rotations nor stochastic rounding")


RECIPES = {
    "per_tensor": Recipe(
        "tensor", "tensor", "tensor", gradient_dtype=E5M2, forward_accumulation="fast"
    ),
    "per_tensor_delayed": Recipe(
        "tensor",
        "tensor",
        "tensor",
        gradient_dtype=E5M2,
        forward_accumulation="fast",
        history=1024,
    ),
    "blockwise": Recipe("1x128", "128x128", "1x128", power_of_two=True),
    "blockwise_2d": Recipe("128x128", "128x128", "1x128", power_of_two=True),
    "mxfp8": Recipe("mxfp8", "mxfp8", "mxfp8"),
    "nvfp4": Recipe(
        "nvfp4",
        "nvfp4",
        "nvfp4",
        dtype=E2M1,
        gradient_dtype=E2M1,
        square_rhs=True,
        hadamard=True,
        stochastic_gradient=True,
    ),
}


def as_recipe(recipe: str | Recipe) -> Recipe:
    """The recipe of that name.

    Raises:
        ValueError: There is none.
    """
    if isinstance(recipe, Recipe):
        return recipe
    if not isinstance(recipe, str) or recipe not in RECIPES:
        known = ", ".join(repr(name) for name in RECIPES)
        raise ValueError(f"recipe must be one of {known} or a Recipe, got {recipe!r}")
    return RECIPES[recipe]
