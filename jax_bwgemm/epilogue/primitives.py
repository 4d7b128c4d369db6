"""The primitives of `jax.lax` that an epilogue may have: their C++ and their accuracy.

``{0}``, ``{1}``, ``{2}`` stand for operands. Functions that begin with ``bw_`` are in
``prelude.h``. Values of bfloat16 and float16 are computed in float32 and rounded after each step.

Accuracy is the largest error in units in the last place of float32, over all arguments, from the
tables of the CUDA C++ Programming Guide, "Mathematical Functions"; composed ones are the sum of
their parts'. 0: correctly rounded. Sums and products may be contracted into fused multiply-adds,
which round once.
"""

from __future__ import annotations

import dataclasses

from jax_bwgemm.epilogue.program import FLOATS, SIGNED, UNSIGNED

# Kinds of types, as `Primitive.kinds` names them.
KINDS = {
    **dict.fromkeys(FLOATS, "f"),
    **dict.fromkeys(SIGNED, "i"),
    **dict.fromkeys(UNSIGNED, "u"),
    "bool": "b",
}


@dataclasses.dataclass(frozen=True)
class Primitive:
    """How a primitive is computed.

    Attributes:
        code: C++ expression.
        kinds: Kinds of types that its first operand may have: ``f``, ``i``, ``u``, ``b``.
        ulp: Largest error of a float32 result.
    """

    code: str
    kinds: str = "f"
    ulp: float = 0.0


_NUMBERS, _INTEGERS, _ALL = "fiu", "iu", "fiub"

PRIMITIVES = {
    # Exact or correctly rounded.
    "add": Primitive("bw_add({0}, {1})", _NUMBERS),
    "sub": Primitive("bw_sub({0}, {1})", _NUMBERS),
    "mul": Primitive("bw_mul({0}, {1})", _NUMBERS),
    "div": Primitive("bw_div({0}, {1})", _NUMBERS),
    "rem": Primitive("bw_rem({0}, {1})", _NUMBERS),
    "neg": Primitive("bw_neg({0})", _NUMBERS),
    "abs": Primitive("bw_abs({0})", _NUMBERS),
    "sign": Primitive("bw_sign({0})", _NUMBERS),
    "square": Primitive("bw_mul({0}, {0})", _NUMBERS),
    "max": Primitive("bw_max({0}, {1})", _ALL),
    "min": Primitive("bw_min({0}, {1})", _ALL),
    "clamp": Primitive("bw_min(bw_max({1}, {0}), {2})", _NUMBERS),
    "floor": Primitive("floorf({0})"),
    "ceil": Primitive("ceilf({0})"),
    "sqrt": Primitive("sqrtf({0})"),
    "nextafter": Primitive("nextafterf({0}, {1})"),
    "is_finite": Primitive("bw_is_finite({0})"),
    "eq": Primitive("({0} == {1})", _ALL),
    "ne": Primitive("({0} != {1})", _ALL),
    "lt": Primitive("({0} < {1})", _ALL),
    "le": Primitive("({0} <= {1})", _ALL),
    "gt": Primitive("({0} > {1})", _ALL),
    "ge": Primitive("({0} >= {1})", _ALL),
    "and": Primitive("({0} & {1})", "iub"),
    "or": Primitive("({0} | {1})", "iub"),
    "xor": Primitive("({0} ^ {1})", "iub"),
    "not": Primitive("bw_not({0})", "iub"),
    "shift_left": Primitive("bw_shift_left({0}, {1})", _INTEGERS),
    "shift_right_logical": Primitive("bw_shift_right_logical({0}, {1})", _INTEGERS),
    "shift_right_arithmetic": Primitive("bw_shift_right_arithmetic({0}, {1})", _INTEGERS),
    "population_count": Primitive("bw_population_count({0})", _INTEGERS),
    "clz": Primitive("bw_clz({0})", _INTEGERS),
    # Rounded.
    "exp": Primitive("bw_exp({0})", ulp=1),
    "exp2": Primitive("exp2f({0})", ulp=2),
    "expm1": Primitive("expm1f({0})", ulp=1),
    "log": Primitive("logf({0})", ulp=1),
    "log1p": Primitive("log1pf({0})", ulp=1),
    "rsqrt": Primitive("bw_rsqrt({0})", ulp=2),
    "cbrt": Primitive("cbrtf({0})", ulp=1),
    "pow": Primitive("powf({0}, (float)({1}))", ulp=4),
    "sin": Primitive("sinf({0})", ulp=2),
    "cos": Primitive("cosf({0})", ulp=2),
    "tan": Primitive("tanf({0})", ulp=4),
    "asin": Primitive("asinf({0})", ulp=2),
    "acos": Primitive("acosf({0})", ulp=2),
    "atan": Primitive("atanf({0})", ulp=2),
    "atan2": Primitive("atan2f({0}, {1})", ulp=3),
    "sinh": Primitive("sinhf({0})", ulp=3),
    "cosh": Primitive("coshf({0})", ulp=2),
    "tanh": Primitive("bw_tanh({0})", ulp=2),
    "asinh": Primitive("asinhf({0})", ulp=3),
    "acosh": Primitive("acoshf({0})", ulp=4),
    "atanh": Primitive("atanhf({0})", ulp=3),
    "erf": Primitive("bw_erf({0})", ulp=2),
    "erfc": Primitive("bw_erfc({0})", ulp=4),
    "logistic": Primitive("bw_logistic({0})", ulp=3),  # 0 below -88
    "one_minus_square": Primitive("(1.0f - {0}) * (1.0f + {0})", ulp=2),  # of JAX 0.12
}
PRIMITIVES["add_any"] = PRIMITIVES["add"]

# Those that `source.py` writes itself, because they depend on more than their operands.
# integer_pow multiplies, so it is off by half a unit a factor.
SPECIAL = ("literal", "iota", "convert_element_type", "integer_pow", "reduce_precision", "round")
SPECIAL += ("select_n", "one_plus_tanh", "logistic_of_log2", "bitcast_convert_type")
# One that `tracing.py` writes as sums and products, by Horner's rule: of JAX 0.12.
POLYNOMIAL = "polynomial"
# Values as they are. stop_gradient and names mean something to JAX alone.
ALIASES = ("copy", "copy_p", "name", "pvary", "pcast", "optimization_barrier", "stop_gradient")
