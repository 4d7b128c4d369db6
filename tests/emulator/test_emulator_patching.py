"""Substituting a kernel's PTX, which test_fault_injection.py injects faults with."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from emulator_mutations import original_ptx
from ptx_samples import HEADER

import jax_bwgemm as bw
from jax_bwgemm import emulator

pytestmark = requires_emulator


@pytest.fixture(scope="module")
def ptx() -> str:
    return original_ptx()


def test_substitution_ends_with_its_block(ptx: str) -> None:
    with emulator.substituted_ptx(ptx.replace("65536;", "65552;")):
        pass
    assert original_ptx() == ptx


def test_substitute_must_be_ptx() -> None:
    with pytest.raises(emulator.PtxError), emulator.substituted_ptx("nonsense"):
        pass


@pytest.mark.parametrize("params", [".param .b8 big[60000]", ".param .b64 a, .param .b64 b", ""])
def test_substitute_must_take_what_the_host_passes(params: str) -> None:
    a, b = jnp.ones((64, 64), jnp.bfloat16), jnp.ones((64, 64), jnp.bfloat16)
    with bw.config.target("sm100"):
        bw.matmul(a, b, implementation="emulator").block_until_ready()
        name = re.search(r"\.entry\s+(\w+)\(", emulator.last_ptx())[1]
        other = HEADER + f".visible .entry {name}({params}) {{ ret; }}\n"
        with (
            emulator.substituted_ptx(other),
            pytest.raises(
                (ValueError, jax.errors.JaxRuntimeError), match="must have the same sizes"
            ),
        ):
            bw.matmul(a, b, implementation="emulator").block_until_ready()


def test_substitute_must_be_text() -> None:
    with pytest.raises(TypeError, match="PTX must be a str, got int"), emulator.substituted_ptx(5):
        pass


def test_last_ptx_is_none_after_a_foreign_launch() -> None:
    from ptx_samples import COUNTER

    emulator.Module(COUNTER).launch("counter", np.zeros(1, np.uint32), block=1)
    assert emulator.last_ptx() is None


@pytest.mark.parametrize("linkage", ["", ".visible ", ".weak "])
def test_a_kernel_of_any_linkage_is_extracted(linkage: str) -> None:
    from jax_bwgemm.emulator.patching import extract_kernel

    first, second = (f"{linkage}.entry {name}() {{ {{ ret; }} }}\n" for name in "ab")
    other = ".entry ab() { ret; }\n"
    assert extract_kernel(HEADER + first + second + other, "a").split() == (HEADER + first).split()
    assert extract_kernel(HEADER + first + other + second, "b").split() == (HEADER + second).split()


def test_extracting_an_unknown_kernel(ptx: str) -> None:
    from jax_bwgemm.emulator.patching import extract_kernel

    with pytest.raises(ValueError, match="the PTX text has no kernel 'nothing'"):
        extract_kernel(ptx, "nothing")
    with pytest.raises(ValueError, match="the PTX text ends before the body of a kernel"):
        extract_kernel(".entry a\n.entry b ", "b")
