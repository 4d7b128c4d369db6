"""The product across devices: pmap, jit with NamedSharding and shard_map, sharded in M, N and K.

    python bench_sharded.py                       # all modes on all devices
    python bench_sharded.py --modes jit-m pmap-m --shape 8192,8192,8192 --devices 1 2

The shape is what one device does. Under --scaling weak the sharded extent grows with the devices
(data parallelism: the same work for each), under strong it is divided among them. Efficiency is the
time the same code needs on one device for one device's share, over the time on all of them. Every
mode is checked against the unsharded product, and its collectives against what it should need:
none for M and N, one all-reduce for K; `grad` is the gradient of replicated weights under
data-parallel inputs, which needs one all-reduce.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from common import hlo, options, report, timing
from dense import shapes as shape_lists

MODES = ("pmap-m", "jit-m", "jit-n", "jit-k", "shard_map-m", "shard_map-n", "shard_map-k", "grad")


@dataclasses.dataclass(frozen=True)
class Case:
    """One mode on one number of devices, ready to compile.

    Attributes:
      function: takes the global operands.
      args: global operands, placed.
      want: the unsharded result to compare with, in float32.
      reduces: whether the sum over k crosses devices.
    """

    function: Callable
    args: tuple
    want: Any
    reduces: bool


def global_shape(shape: shape_lists.Shape, mode: str, devices: int) -> shape_lists.Shape:
    """The problem of all devices together when each does `shape`."""
    axis = "m" if mode == "grad" else mode[-1]
    return dataclasses.replace(shape, **{axis: getattr(shape, axis) * devices})


def make_case(
    matmul: Callable, mode: str, shape: shape_lists.Shape, devices: Sequence, dtype: Any, seed: int
) -> Case:
    """Builds operands and function of `mode` for the global problem `shape`."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    lhs_key, rhs_key = jax.random.split(jax.random.key(seed))
    a = jax.random.normal(lhs_key, (shape.m, shape.k), jnp.float32).astype(dtype)
    b = (jax.random.normal(rhs_key, (shape.k, shape.n), jnp.float32) * shape.k**-0.5).astype(dtype)
    want = jnp.matmul(a, b, preferred_element_type=jnp.float32)
    mesh = Mesh(devices, ("d",))
    axis = mode[-1]
    a_spec = {"m": P("d", None), "n": P(), "k": P(None, "d")}.get(axis, P("d", None))
    b_spec = {"m": P(), "n": P(None, "d"), "k": P("d", None)}.get(axis, P())
    out_spec = {"m": P("d", None), "n": P(None, "d"), "k": P()}.get(axis, P("d", None))

    def place(x: Any, spec: Any) -> Any:
        return jax.device_put(x, NamedSharding(mesh, spec))

    args = (place(a, a_spec), place(b, b_spec))
    if mode == "pmap-m":
        count = len(devices)
        function = jax.pmap(matmul, in_axes=(0, None), devices=devices)
        args = (place(a.reshape(count, shape.m // count, shape.k), P("d")), place(b, P()))
        return Case(function, args, want.reshape(count, shape.m // count, shape.n), False)
    if mode == "grad":
        # loss = sum((x @ w)^2) / 2 has the gradient x.T @ (x @ w) with respect to w.
        def loss(w, x):
            y = matmul(x, w).astype(jnp.float32)
            return 0.5 * jnp.mean(jnp.square(y))

        replicated = NamedSharding(mesh, P())
        function = jax.jit(jax.grad(loss), out_shardings=replicated)
        want = jax.jit(jax.grad(lambda w, x: 0.5 * jnp.mean(jnp.square(jnp.matmul(x, w).astype(
            jnp.float32)))))(b, a)  # fmt: skip
        return Case(function, args[::-1], want.astype(jnp.float32), True)
    if mode.startswith("shard_map"):

        def local(x, w):
            y = matmul(x, w)
            return jax.lax.psum(y, "d") if axis == "k" else y

        mapped = jax.shard_map(local, mesh=mesh, in_specs=(a_spec, b_spec), out_specs=out_spec)
        return Case(jax.jit(mapped), args, want, axis == "k")
    function = jax.jit(matmul, out_shardings=NamedSharding(mesh, out_spec))
    return Case(function, args, want, axis == "k")


def as_expected(found: dict[str, dict[str, int]], case: Case, devices: int) -> bool:
    """Whether the collectives are exactly those this mode needs."""
    if not case.reduces:
        return not found
    if devices == 1:  # an explicit psum over one device stays in the program
        return set(found) <= {"all-reduce"}
    return set(found) == {"all-reduce"} and found["all-reduce"]["count"] == 1


def measure(cases: dict[int, Case], name: str, rounds: int, burst: int) -> dict[int, dict]:
    """Times the same mode on several device counts in turns; device count -> row fields."""
    import jax

    candidates, fields = [], {}
    for count, case in cases.items():
        compiled = case.function.lower(*case.args).compile()
        found = hlo.collectives(compiled.as_text())
        # pmap's own wrapper places the operands: call it, not the bare executable.
        call = case.function if name.startswith("pmap") else compiled
        got = jax.device_get(call(*case.args))
        want = jax.device_get(case.want)
        error = got.astype("float32") - want
        distance = float((error**2).sum() / (want**2).sum())
        expected = as_expected(found, case, count)
        status = "ok" if distance <= 1e-4 else f"wrong: {distance:.2e} from the unsharded product"
        if not expected and status == "ok":
            status = f"unexpected collectives: {hlo.describe(found)}"
        fields[count] = {"collectives": found, "distance": distance, "status": status}
        run_once = functools.partial(_call, call, case.args)
        candidates.append(timing.Candidate(f"{name}/{count}", run_once, jax.block_until_ready))
    for candidate in candidates:
        timing.warm_up(candidate, 0.0 if rounds < 3 else 0.1)
    times = timing.interleave(timing.WallTimer(), candidates, rounds=rounds, burst=burst)
    for count, measured in zip(cases, times, strict=True):
        fields[count] |= report.summarise(measured.times_us)
    return fields


def _call(function: Callable, args: tuple, _: int) -> Any:
    return function(*args)


def main(argv: Sequence[str] | None = None) -> int:
    parser = options.parser(__doc__.split("\n", 1)[0])
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--shape", default="8192,8192,4096", metavar="M,N,K", help="per device")
    parser.add_argument("--scaling", choices=("weak", "strong"), default="weak")
    parser.add_argument(
        "--devices", nargs="*", type=options.positive, help="device counts (default: 1 and all)"
    )
    parser.add_argument("--peer", action="store_true", help="run every mode on jnp.matmul too")
    parser.add_argument("--rounds", type=options.positive, default=7)
    parser.add_argument("--burst", type=options.positive, default=20, help="calls in flight")
    args = parser.parse_args(argv)
    if args.small:
        args.shape, args.rounds, args.burst = "32,48,64", 2, 2
    try:
        shape = shape_lists.parse(args.shape)
    except ValueError as error:
        parser.error(str(error))
    if args.dry_run:
        print(f"{shape.name} {args.dtype} per device, {args.scaling} scaling: {args.modes}")
        return 0
    return run(args, shape, options.prepare(args))


def run(args: argparse.Namespace, shape: shape_lists.Shape, platform: str) -> int:
    """Everything after the options, on the devices of one platform."""
    import jax
    import jax.numpy as jnp

    import jax_bwgemm

    devices = jax.devices(platform)
    counts = sorted({1, *(args.devices or [len(devices)])})
    if counts[-1] > len(devices):
        print(
            f"error: --devices {counts[-1]} asked for, this machine has {len(devices)}",
            file=sys.stderr,
        )
        return 2
    ours = functools.partial(jax_bwgemm.matmul, implementation=options.implementation_of(args))
    matmuls = {"bwgemm": ours} | ({"xla": jnp.matmul} if args.peer else {})
    out = report.Report(args.out, "bench_sharded")
    dtype = jnp.dtype(args.dtype)
    for mode in args.modes:
        for impl, matmul in matmuls.items():
            weak = args.scaling == "weak"
            problems = {c: global_shape(shape, mode, c if weak else 1) for c in counts}
            cases = {
                c: make_case(matmul, mode, problem, devices[:c], dtype, args.seed)
                for c, problem in problems.items()
            }
            fields = measure(cases, mode, args.rounds, args.burst)
            alone = fields[1]["median_us"]
            for count, row in fields.items():
                ideal = alone if weak else alone / count
                out.add(
                    "sharded",
                    mode=mode,
                    impl=impl,
                    devices=count,
                    shape=problems[count].name,
                    scaling=args.scaling,
                    method="wall",
                    efficiency=ideal / row["median_us"],
                    tflops_per_device=problems[count].flops
                    * (2 if mode == "grad" else 1)
                    / count
                    / row["median_us"]
                    / 1e6,
                    **row,
                )
            del cases
            out.progress(f"  {mode} {impl}: " + ", ".join(
                f"{c} devices {r['median_us']:.0f}us" for c, r in fields.items()))  # fmt: skip
    out.close()
    rows = out.rows("sharded")
    lines = [{**r, "collectives": hlo.describe(r["collectives"])} for r in rows]
    columns = ["mode", "impl", "devices", "shape", "median_us", "spread", "tflops_per_device"]
    print(report.table(lines, [*columns, "efficiency", "collectives", "status"]))
    bad = [r for r in rows if r["status"] != "ok"]
    for row in bad:
        print(f"error: {row['mode']} on {row['devices']} devices: {row['status']}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
