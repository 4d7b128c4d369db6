"""The GEMM problems that the benchmarks run, named once.

A shape is D[batch, m, n] = A[batch, m, k] @ B[batch, k, n]. `majors` says how the operands are
stored, in the package's letters: lhs `k` is [m, k] and `m` is [k, m]; rhs `n` is [k, n] and `k` is
[n, k]. So `kn` is the plain product, `kk` the gradient of the left operand (dy @ w.T) and `mn` the
gradient of the right one (x.T @ dy).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from dense import model_products

MAJORS = ("kn", "kk", "mn", "mk")


@dataclasses.dataclass(frozen=True)
class Shape:
    """One GEMM problem.

    Attributes:
      m, n, k: extents; m and n of the result, k contracted.
      batch: leading batch extent of both operands and the result.
      majors: storage of both operands, one of MAJORS.
      tags: the suites this shape belongs to.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    majors: str = "kn"
    tags: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.majors not in MAJORS:
            raise ValueError(f"majors must be one of {', '.join(MAJORS)}, got {self.majors!r}")
        if min(self.m, self.n, self.k, self.batch) < 1:
            raise ValueError(
                f"shape extents must be positive, got m={self.m} n={self.n} k={self.k} "
                f"batch={self.batch}"
            )

    @property
    def name(self) -> str:
        """`m,n,k`, with `xbatch` and the majors where they are not the plain ones."""
        batch = f"x{self.batch}" if self.batch != 1 else ""
        majors = f":{self.majors}" if self.majors != "kn" else ""
        return f"{self.m},{self.n},{self.k}{batch}{majors}"

    @property
    def flops(self) -> int:
        """Multiplies and adds of the product."""
        return 2 * self.batch * self.m * self.n * self.k

    def bytes(self, in_bytes: int, out_bytes: int) -> int:
        """Bytes of both operands and the result, each counted once."""
        operands = self.m * self.k + self.k * self.n
        return self.batch * (operands * in_bytes + self.m * self.n * out_bytes)

    @property
    def lhs_shape(self) -> tuple[int, ...]:
        """Stored shape of the left operand."""
        dims = (self.m, self.k) if self.majors[0] == "k" else (self.k, self.m)
        return dims if self.batch == 1 else (self.batch, *dims)

    @property
    def rhs_shape(self) -> tuple[int, ...]:
        """Stored shape of the right operand."""
        dims = (self.k, self.n) if self.majors[1] == "n" else (self.n, self.k)
        return dims if self.batch == 1 else (self.batch, *dims)

    @property
    def dimension_numbers(self) -> tuple:
        """`lax.dot_general` dimension numbers of this product on the stored operands."""
        first = 0 if self.batch == 1 else 1
        lhs = first + (1 if self.majors[0] == "k" else 0)
        rhs = first + (0 if self.majors[1] == "n" else 1)
        batch = () if self.batch == 1 else (0,)
        return ((lhs,), (rhs,)), (batch, batch)


# The weights of a Llama-3-8B layer as (n, k): qkv, attention out, gate+up, down projection.
LAYER_WEIGHTS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))


def _untagged(text: str) -> Shape:
    """As `parse`, without the tags."""
    body, _, majors = text.partition(":")
    dims, _, batch = body.partition("x")
    try:
        m, n, k = (int(d) for d in dims.split(","))
        count = int(batch) if batch else 1
    except ValueError:
        raise ValueError(
            f"a shape is m,n,k with an optional xBATCH and :MAJORS, e.g. 4096,4096,4096 or "
            f"512,512,512x16:kk; got {text!r}"
        ) from None
    return Shape(m, n, k, count, majors or "kn")


def _shapes(tag: str, dims: Iterable[tuple[int, ...]], majors: str = "kn") -> list[Shape]:
    return [Shape(*d, majors=majors, tags=frozenset({tag})) for d in dims]


def _design() -> list[Shape]:
    large = [(8192, 8192, 8192), (4096, 8192, 4096), (8192, 28672, 4096), (2048, 4096, 14336)]
    mid = [(512, 6144, 4096), (1152, 1536, 8192), (1024, 1152, 4096)]
    small = [(128, 6144, 4096), (16, 6144, 4096), (16, 4096, 14336), (384, 384, 16384)]
    return _shapes("design", large + mid + small)


def _suite() -> list[Shape]:
    layers = [(m, n, k) for m in (1, 16, 64, 128, 512, 2048, 8192) for n, k in LAYER_WEIGHTS]
    square = [(4096, 4096, 4096), (8192, 8192, 8192), (4096, 8192, 4096)]
    odd = [(1024, 1152, 4096), (1024, 3264, 4096), (1152, 1536, 8192)]
    deep = [(384, 384, 16384), (256, 512, 65536), (8192, 8192, 512)]
    return _shapes("suite", layers + square + odd + deep)


def _backward() -> list[Shape]:
    """Both gradients of y[m, n] = x[m, k] @ w[k, n] for the training-sized layers."""
    out = []
    for m in (2048, 8192):
        for n, k in LAYER_WEIGHTS:
            out += _shapes("backward", [(m, k, n)], "kk")  # dx = dy @ w.T contracts n
            out += _shapes("backward", [(k, n, m)], "mn")  # dw = x.T @ dy contracts m
    return out


def _held_out() -> list[Shape]:
    """What the suite has nothing like: odd multiples of 8, primes x 8, tall, wide, batched."""
    plain = [
        (1000, 1000, 1000),
        (8 * 127, 8 * 131, 8 * 137),
        (8 * 251, 8 * 509, 8 * 257),
        (3000, 5000, 2040),
        (16384, 256, 1024),
        (256, 16384, 1024),
        (32768, 512, 512),
        (24, 12288, 3072),
        (200, 7168, 2048),
        (7168, 2112, 7168),
    ]
    batched = [(512, 512, 512, 16), (2048, 2048, 128, 32), (128, 1024, 1024, 8)]
    return _shapes("held-out", plain + batched)


def _varied() -> list[Shape]:
    """More of these, with short K and other majors."""
    primes = [
        (136, 4024, 4072),
        (376, 2152, 2168),
        (536, 9176, 1304),
        (1096, 2696, 1736),
        (1096, 8072, 1048),
        (1192, 2248, 4808),
    ]
    multiples = [
        (8, 4096, 4096),
        (32, 8192, 1024),
        (96, 14336, 3584),
        (192, 32000, 2048),
        (448, 6272, 1792),
        (640, 3200, 1920),
        (672, 1344, 6720),
        (768, 2304, 768),
        (896, 5376, 2688),
        (1500, 3000, 3000),
        (1664, 3584, 2560),
        (2304, 768, 3072),
        (3072, 768, 8192),
        (4480, 2240, 3136),
    ]
    short = [
        (8, 50304, 768),
        (64, 65536, 512),
        (4864, 4864, 640),
        (20000, 768, 768),
        (24576, 3072, 256),
        (50000, 64, 256),
        (65536, 128, 512),
        (131072, 256, 256),
    ]
    batched = [
        (64, 64, 64, 512),
        (128, 512, 2048, 12),
        (256, 256, 64, 128),
        (256, 2048, 64, 32),
        (320, 320, 320, 32),
        (384, 384, 1536, 24),
        (1000, 512, 1000, 8),
        (1024, 1024, 64, 48),
    ]
    return [
        *_shapes("varied", primes + multiples + short + batched),
        *_shapes("varied", [(1016, 1048, 1096), (1024, 1024, 64, 16)], "kk"),
        *_shapes("varied", [(2000, 2000, 1000), (4072, 4024, 4056)], "mn"),
    ]


def _few_rows() -> list[Shape]:
    """Decoding: weights of public models and 1 to 48 rows. Nothing is fitted to them."""
    shapes = (
        "16,3072,24576 4,24576,3072 32,1152,6912:kk 1,2304,6912 2,5376,21504 3,21504,5376 "
        "24,8192,29568 1,29568,8192 8,1280,8192:kk 1,8192,1280 2,4096,1536 48,896,4864 "
        "48,4864,896 2,2816,1024 8,1024,2816:kk 2,640,2560 48,2560,640 1,6912,1152 3,3328,2048 "
        "8,2048,8192 1,8192,2048:kk 32,16384,5120 1,5120,16384 8,13824,5120 1,5120,13824 "
        "4,152064,3584 16,128256,2048:kk 48,7680,2560 4,2560,2560 3,1024,4096 16,4096,2048 "
        "6,512,7168 3,576,7168:kk 8,3072,1536 24,1024,14336 3,14336,1024"
    )
    tags = frozenset({"few-rows-checking"})
    return [dataclasses.replace(_untagged(text), tags=tags) for text in shapes.split()]


def _unaligned() -> list[Shape]:
    """Rows whose pitch is no multiple of 16 bytes, which TMA cannot address."""
    return _shapes(
        "unaligned",
        [
            (4095, 4095, 4095),
            (4096, 4095, 4096),
            (4096, 4096, 4095),
            (2047, 4096, 4096),
            (512, 50257, 1024),
            (127, 129, 131),
        ],
    )


def _models() -> list[Shape]:
    """Products of public models, half of them only for checking, and of attention."""
    shapes = []
    for _, *dims, majors in model_products.PRODUCTS:
        shape = Shape(*dims, 1, majors)
        half = "fitting" if model_products.is_for_fitting(shape.name) else "checking"
        tags = frozenset({"models", f"models-{half}"})
        shapes.append(dataclasses.replace(shape, tags=tags))
    attention = frozenset({"attention"})
    return shapes + [Shape(*dims, tags=attention) for dims in model_products.ATTENTION]


def _merge(groups: Iterable[Sequence[Shape]]) -> tuple[Shape, ...]:
    """One entry per problem: a shape in two suites carries both tags."""
    merged: dict[str, Shape] = {}
    for shape in (s for group in groups for s in group):
        seen = merged.get(shape.name)
        tags = shape.tags | seen.tags if seen else shape.tags
        merged[shape.name] = dataclasses.replace(shape, tags=tags)
    return tuple(merged.values())


def _f32() -> list[Shape]:
    """Products with one f32 operand, by its side: squares, and the two gradients of an LM head
    whose logits are f32.
    """
    made = []
    for side, head in (
        ("lhs", Shape(8192, 4096, 128256, majors="kk")),
        ("rhs", Shape(4096, 128256, 8192, majors="mn")),
    ):
        squares = [Shape(n, n, n) for n in (4096, 8192)]
        tags = frozenset({f"f32-{side}"})
        made += [dataclasses.replace(shape, tags=tags) for shape in (*squares, head)]
    few_rows = [(16, 14336, 4096), (128, 6144, 4096), (512, 6144, 4096)]
    large = [(4096, 4096, 4096), (8192, 8192, 8192), (4096, 8192, 4096)]
    return made + _shapes("f32-both", [*large, *few_rows])


# Small enough for a CPU, large enough to be a GEMM: the rehearsal of every benchmark.
SMALL = _shapes("small", [(64, 96, 128), (128, 64, 32)])

ALL = _merge(
    [
        _design(),
        _suite(),
        _backward(),
        _held_out(),
        _varied(),
        _models(),
        _few_rows(),
        _unaligned(),
        _f32(),
        SMALL,
    ]
)
TAGS = tuple(sorted({tag for shape in ALL for tag in shape.tags}))


def parse(text: str) -> Shape:
    """Reads `m,n,k`, `m,n,kxbatch` or either with `:majors`, as `Shape.name` writes it.

    Raises:
      ValueError: the text is not of that form.
    """
    shape = _untagged(text)
    return {s.name: s for s in ALL}.get(shape.name, shape)


def select(
    tags: Sequence[str] = (), names: Sequence[str] = (), majors: Sequence[str] = ()
) -> list[Shape]:
    """The shapes with any of `tags`, then those given by name; each also in every one of `majors`.

    Args:
      tags: suite names out of TAGS.
      names: shapes as `parse` reads them.
      majors: when given, every selected problem is run once in each of these storages.

    Raises:
      ValueError: unknown tag or majors, or a malformed shape.
    """
    for tag in tags:
        if tag not in TAGS:
            raise ValueError(f"unknown tag {tag!r}; the tags are {', '.join(TAGS)}")
    picked = [s for s in ALL if s.tags & set(tags)] + [parse(n) for n in names]
    if majors:
        picked = [dataclasses.replace(s, majors=mj) for s in picked for mj in majors]
    return list({s.name: s for s in picked}.values())
