"""The random bits that round: known answers, and independence of where a block begins."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_exact

from jax_bwgemm.scaled import random_bits


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [  # the authors' test vectors for philox4x32-10
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], answer: tuple[int, ...]
) -> None:
    words = random_bits.philox(
        [jnp.uint32(c) for c in counter], (jnp.uint32(key[0]), jnp.uint32(key[1]))
    )
    assert [int(w) for w in words] == list(answer)


def test_a_block_has_the_bits_of_its_place() -> None:
    origin = random_bits.origins(jax.random.key(3), 2)
    whole = np.asarray(random_bits.bits_of(origin, 20, 40))
    block = random_bits.bits_of(random_bits.moved(origin, 5, 16), 7, 11)
    assert_exact(block, whole[:, 5:12, 16:27])
    assert not np.array_equal(whole[0], whole[1])
    assert whole.max() < 2**16


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_any_kind_of_key(implementation: str) -> None:
    words = random_bits.origins(jax.random.key(0, impl=implementation), 3)
    assert words.shape == (3, random_bits.WORDS)
    assert np.asarray(words)[:, 2].tolist() == [0, 1, 2]
