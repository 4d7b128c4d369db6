"""Breaks kernels and counts what the emulator notices; runs them unchanged and counts reports.

    python tools/run_emulator_faults.py --cases 'sm100_.*2sm' --per-kind 4      # faults
    python tools/run_emulator_faults.py --clean 20                              # 20 seeds unchanged
    python tools/run_emulator_faults.py --clean 20 --part 1/2                   # half of them

Kernels are this package's and those of Triton in tests/support. Faults are those of
tests/support/ptx_faults.py, at most ``--per-kind`` of a kind in a kernel, spread over its text. One
counts as noticed where one of ``--seeds`` seeds gives an error, a wrong result, or a warning that
the unchanged kernel does not give. One that is missed and, by tests/support/ptx_equivalents.py,
changes nothing that PTX promises does not count; a table says why. Each other miss is listed with
its line: the problem does not come to what it breaks, or nothing tells that it breaks nothing, or
the emulator has a gap. Needs a checkout.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / part) for part in ("support", "emulator")]
sys.path.insert(0, str(Path(__file__).parent))

import jax  # noqa: E402
import numpy as np  # noqa: E402
from ptx_equivalents import equivalent, reasons  # noqa: E402
from ptx_faults import Fault, faults  # noqa: E402

from jax_bwgemm import emulator, runtime  # noqa: E402

STEPS = 1 << 24


@dataclasses.dataclass(frozen=True)
class Case:
    """A kernel on one problem.

    Attributes:
        name: What `--cases` selects by.
        run: Launches it; raises AssertionError on a wrong result.
        own: Whether it is a kernel of this package, else a module that `run` makes.
        least_sms: CTAs of a cluster.
    """

    name: str
    run: Callable[[], object]
    own: bool = True
    least_sms: int = 1


def _compare(got: np.ndarray, want: np.ndarray) -> None:
    # As float32, whose NaN NumPy knows.
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


def _sizes(tile_m: int, tile_n: int) -> tuple[int, int]:
    """M and N of several tiles for each consumer of two CTAs, with ragged edges.

    They come around their store buffers. The last tile's last columns lie in the matrix: its stores
    are on their way when a CTA ends.
    """
    return 3 * tile_m + 40, (3 if tile_n >= 64 else 6) * tile_n - min(24, tile_n // 2)


def dense_cases() -> Iterator[Case]:
    """Kernels of every tile: K several times around the pipeline, ragged edges, several tiles."""
    import emulator_cases as cases

    from jax_bwgemm.emulator.dense import run_gemm

    for kernel in cases.one_per_tile("sm100") + cases.one_per_tile("sm90"):
        m, n = _sizes(kernel.tile_m, kernel.tile_n)
        if kernel.swap_ab:  # tile_m lies along N
            m, n = n, m
        steps, options, least_sms = 2 * kernel.stages + 1, {}, kernel.cluster_m * kernel.cluster_n
        if kernel.stream_k:  # pieces of tiles, and more clusters than tiles divide into
            steps, options, least_sms = 33, {"decomposition": "stream_k"}, 4 * least_sms
        problem = cases.Problem(m, n, steps * kernel.tile_k + 8)
        a, b = cases.operands(kernel, problem)
        want = cases.expected(kernel, a, b)

        def run(kernel=kernel, a=a, b=b, want=want, options=options) -> None:
            _compare(run_gemm(kernel, a, b, **options), want)

        yield Case(kernel.name, run, least_sms=least_sms)


def grouped_cases() -> Iterator[Case]:
    """A grouped kernel of each line of grouped.def: empty groups, long ones, tails.

    Each cluster has several tiles, and some end with a whole one, whose stores are then on their
    way: of the 30 tiles of two columns, 10 come last that are groups' ends or rows of no group. Of
    k-grouped kernels one group is NaN: what of it a neighbour's block has must not be multiplied,
    by zero neither.
    """
    import grouped_cases as cases

    for kernel in cases.one_per_line():
        tile = cases.row_tile(kernel)
        rows = 11 * tile + 9
        sizes = np.array([tile + 3, tile - 1, 1, 0, 2, 9 * tile])
        columns = 2 * cases.column_tile(kernel)
        columns -= min(24, columns // 4)  # as of `_sizes`
        problem = cases.problem(kernel, rows, columns, 584, sizes)
        if kernel.kind == "k-grouped":
            for operand in (problem.lhs, problem.rhs):
                operand[:, cases.rows_of(problem, 1)] = np.nan
        want = cases.expected(kernel, problem)

        def run(kernel=kernel, problem=problem, want=want) -> None:
            _compare(cases.run(kernel, problem), want)

        yield Case(kernel.name, run, least_sms=6 * kernel.cluster_m * kernel.cluster_n)


def scaled_cases() -> Iterator[Case]:
    """Scaled kernels of every tile with each pair of layouts, and those that quantize."""
    import quantize_cases
    import sanitize_scaled

    for kernel in runtime.emulated_scaled_kernels():
        if kernel.out_dtype != "bfloat16" or "float8_e5m2" in (kernel.a_dtype, kernel.b_dtype):
            continue  # the same code but for a word of an instruction
        rows, columns = _sizes(kernel.tile_m, kernel.tile_n)
        if kernel.swap_ab:
            rows, columns = columns, rows
        types = kernel.a_dtype, kernel.b_dtype, kernel.out_dtype
        k = (2 * kernel.stages + 1) * 128 + sanitize_scaled.k_multiple(kernel)
        for layouts in sanitize_scaled.layouts_of(kernel):
            sizes = rows, columns, k, 1
            case = sanitize_scaled.ScaledCase(kernel.name, types, layouts, *sizes, seed=1)
            yield Case(
                f"{kernel.name} {'x'.join(layouts)}",
                lambda case=case: _compare(*case.run("emulator")),
                least_sms=kernel.cluster_m * kernel.cluster_n,
            )
    for case in quantize_cases.grid((130, 200)):

        def run(case=case) -> None:
            x = case.x()
            pairs = zip(case.run("emulator", x), case.run("xla", x), strict=True)
            for got, want in pairs:
                _compare(np.asarray(got), np.asarray(want))

        yield Case(f"quantize {case}", run)


def scaled_grouped_cases() -> Iterator[Case]:
    """Grouped scaled kernels with the first pair of layouts: empty groups, long ones, tails."""
    import sanitize_scaled_grouped

    for kernel in runtime.emulated_scaled_grouped_kernels():
        case = sanitize_scaled_grouped.cases_of([kernel])[0]
        yield Case(
            f"{kernel.name} {'x'.join(case.scalings)}",
            lambda case=case: _compare(*case.run("emulator")),
            least_sms=kernel.cluster_m * kernel.cluster_n,
        )


def linked_cases() -> Iterator[Case]:
    """Kernels with an epilogue linked into them."""
    import linked_fault_cases

    for name, run in linked_fault_cases.cases():
        yield Case(name, run, least_sms=linked_fault_cases.SMS)


def triton_cases() -> Iterator[Case]:
    """Triton's kernels, none without Triton."""
    import triton_fault_cases

    for name, run in triton_fault_cases.cases():
        yield Case(name, run, own=False)


CASES = (
    dense_cases,
    grouped_cases,
    scaled_cases,
    scaled_grouped_cases,
    linked_cases,
    triton_cases,
)


@contextlib.contextmanager
def _modules(texts: list[str], wrong: str | None) -> Iterator[None]:
    """Notes the texts that modules are made of, or has the last of them replaced."""
    module = emulator.Module

    def make(text: str) -> emulator.Module:
        texts.append(text)
        return module(text if wrong is None else wrong)

    emulator.Module = make
    for name in ("test_emulator_gluon",):  # which keeps modules
        if name in sys.modules:
            sys.modules[name].load.cache_clear()
    try:
        yield
    finally:
        emulator.Module = module


def warned() -> set[str]:
    """Rules of the last launch's warnings."""
    stats = emulator.last_launch()
    return {warning.rule for warning in stats.warnings} if stats is not None else set()


def original(case: Case, sms: int) -> tuple[str, set[str]]:
    """The PTX of the unchanged kernel, and the rules of its warnings on a few seeds."""
    texts: list[str] = []
    rules: set[str] = set()
    for seed in range(3):
        with emulator.configure(seed=seed, sm_count=sms), _modules(texts, None):
            case.run()
        rules |= warned()
    text = emulator.last_ptx() if case.own else texts[-1]
    assert text is not None
    return text, rules


def attempt(case: Case, fault: Fault, rules: set[str], seeds: int, sms: int) -> str:
    """What notices a fault; "missed": nothing on any of the seeds."""
    by = _attempt(case, fault, rules, seeds, sms)
    if by is not None:
        return by
    there = dataclasses.replace(fault, text=fault.trap)
    return "missed" if _attempt(case, there, rules, 2, sms) is not None else "not reached"


def _attempt(case: Case, fault: Fault, rules: set[str], seeds: int, sms: int) -> str | None:
    for seed in range(seeds):
        settings = emulator.configure(seed=seed, sm_count=sms, step_limit=STEPS)
        try:
            change = emulator.substituted_ptx(fault.text) if case.own else _modules([], fault.text)
            with settings, change:
                case.run()
        except emulator.PtxError:
            return "refused"
        except AssertionError:
            return "wrong result"
        # JAX 0.11 raises a ValueError where an eager call fails.
        except (emulator.LaunchFault, jax.errors.JaxRuntimeError, ValueError):
            stats = emulator.last_launch()
            assert stats is not None
            # The last launch went well: this one was refused before it began.
            return "refused" if stats.ok else stats.rule or stats.kind
        new = warned() - rules
        if new:
            return "warning: " + ", ".join(sorted(new))
    return None


def chosen(text: str, per_kind: int, kinds: re.Pattern[str]) -> list[Fault]:
    """At most so many faults of a kind, spread over the text."""
    found: dict[str, list[Fault]] = collections.defaultdict(list)
    for fault in faults(text):
        if kinds.search(fault.kind):
            found[fault.kind].append(fault)
    spread = []
    for of_kind in found.values():
        n = min(len(of_kind), per_kind)
        spread += [of_kind[i * (len(of_kind) - 1) // max(1, n - 1)] for i in range(n)]
    return spread


def run_faults(cases: list[Case], args: argparse.Namespace) -> None:
    """Prints every miss, and how many of each kind were noticed."""
    totals: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    nothing: list[tuple[str, str]] = []
    for case in cases:
        sms = max(args.sm_count, case.least_sms)
        text, rules = original(case, sms)
        here: collections.Counter[str] = collections.Counter()
        for fault in chosen(text, args.per_kind, re.compile(args.kinds)):
            by = attempt(case, fault, rules, args.seeds, sms)
            why = equivalent(text, fault) if by == "missed" else None
            if why is not None:
                by = "equivalent"
                nothing.append((fault.kind, why))
            totals[fault.kind][by] += 1
            here[by] += 1
            if by == "missed" or args.verbose:
                print(f"  {by}: {fault.kind}: line {fault.line}: {fault.statement}", flush=True)
        print(f"{case.name}: {here['missed']} of {_valid(here)} faults missed", flush=True)
    print("| fault | places | missed | noticed by |\n|---|---|---|---|")
    for kind, by in sorted(totals.items()):
        names = ", ".join(f"{b} {n}" for b, n in by.most_common() if b not in NOT_NOTICED)
        print(f"| {kind} | {_valid(by)} | {by['missed']} | {names} |")
    print("| fault that changes nothing | places | because |\n|---|---|---|")
    print("\n".join(reasons(nothing)))
    total = sum(totals.values(), collections.Counter())
    valid, missed = _valid(total), total["missed"]
    print(f"{valid - missed} of {valid} noticed ({(valid - missed) / max(1, valid):.1%})")


# Outcomes besides names of what noticed a fault. All but the first are no faults: the text is not
# PTX, nobody comes to the place, nothing changes.
NOT_NOTICED = ("missed", "refused", "not reached", "equivalent")


def _valid(outcomes: collections.Counter[str]) -> int:
    return outcomes.total() - sum(outcomes[name] for name in NOT_NOTICED[1:])


def run_clean(cases: list[Case], args: argparse.Namespace) -> int:
    """Runs unchanged kernels on many seeds; 1 if any had a report."""
    total = 0
    for case in cases:
        start = time.monotonic()
        reports: collections.Counter[str] = collections.Counter()
        for seed in range(args.clean):
            try:
                with emulator.configure(seed=seed, sm_count=max(args.sm_count, case.least_sms)):
                    case.run()
                reports.update(warned())
            # JAX 0.11 raises a ValueError where an eager call fails.
            except (
                AssertionError,
                emulator.LaunchFault,
                jax.errors.JaxRuntimeError,
                ValueError,
            ) as error:
                reports[str(error).splitlines()[0]] += 1
        print(f"{case.name}: {args.clean} runs, {time.monotonic() - start:.0f} s", flush=True)
        for text, count in reports.items():
            print(f"  {text}: {count} of {args.clean} seeds", flush=True)
        total += reports.total()
    print(f"{len(cases) * args.clean} runs of {len(cases)} kernels, {total} reports")
    return int(total > 0)


def main() -> int:
    """The exit code: 1 where unchanged kernels are reported."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default="", help="names of kernels, a regular expression")
    parser.add_argument(
        "--part",
        default="1/1",
        metavar="I/N",
        help="every N-th of them, from the I-th on: to run parts in several processes",
    )
    parser.add_argument("--kinds", default="", help="kinds of faults, a regular expression")
    parser.add_argument("--per-kind", type=int, default=2, help="places of each kind in a kernel")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--sm-count", type=int, default=2)
    parser.add_argument("--clean", type=int, default=0, metavar="SEEDS", help="unchanged kernels")
    parser.add_argument("--verbose", action="store_true", help="also what was noticed")
    args = parser.parse_args()
    wanted = re.compile(args.cases)
    cases = [case for make in CASES for case in make() if wanted.search(case.name)]
    part, parts = map(int, args.part.split("/"))
    cases = cases[part - 1 :: parts]
    if args.clean:
        return run_clean(cases, args)
    run_faults(cases, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
