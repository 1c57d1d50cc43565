"""Gumbel noise that depends on nothing but a key and the token id.

The key is (seed, choice index, absolute position). Token t's noise is made from the t-th output of
SplitMix64 (Steele, Lea and Flood 2014) seeded with a hash of the key, so any subset of tokens gets
the values that the whole vocabulary would.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)
# Tokens whose bits fit into a processor's cache.
_BLOCK_SIZE = 8192

# Of 2^16 tokens, 160 are loud: of a vocabulary of 49,152, 120.
_NUM_LOUD_OF_2_16 = 160
_LOUD_BITS = np.uint64((2**16 - _NUM_LOUD_OF_2_16) << 48)
# Above -log(-log(1 - 160 / 2^16)) = 6.0139 by far more than what rounding can do.
MAX_QUIET_NOISE = 6.015

Noise = npt.NDArray[np.float64]


class PositionNoise:
    """The noise at one position: one standard Gumbel value for each token id."""

    def __init__(self, *, seed: int, choice_index: int, position: int) -> None:
        self._key = _key(seed, choice_index, position)

    def of(self, token_ids: npt.NDArray[np.int64]) -> Noise:
        bits = _mix((token_ids.astype(np.uint64) + np.uint64(1)) * _INCREMENT + self._key)
        bits ^= bits >> np.uint64(31)
        # 52 bits, since the half of a 53rd would round the largest value up to 1, its noise to inf.
        uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        noise: Noise = -np.log(-np.log(uniform))
        return noise

    def loud(self, vocab_size: int) -> npt.NDArray[np.bool_]:  # [vocab_size]
        """The few tokens of the vocabulary whose noise may be above `MAX_QUIET_NOISE`.

        Noise grows with its random bits, and the last step of the generator leaves their upper half
        as it is: no logarithm is needed to know on which side of a bound it lies.
        """
        loud = np.empty(vocab_size, np.bool_)
        steps = np.arange(1, _BLOCK_SIZE + 1, dtype=np.uint64) * _INCREMENT
        starts = np.arange(0, vocab_size, _BLOCK_SIZE, dtype=np.uint64) * _INCREMENT + self._key
        for start, block in zip(starts, _blocks(loud), strict=True):
            bits = _mix(steps[: block.shape[0]] + start)
            np.greater_equal(bits, _LOUD_BITS, out=block)
        return loud


def _blocks(values: npt.NDArray[np.bool_]) -> Iterator[npt.NDArray[np.bool_]]:
    return (values[i : i + _BLOCK_SIZE] for i in range(0, values.shape[0], _BLOCK_SIZE))


def _key(seed: int, choice_index: int, position: int) -> np.uint64:
    packed = struct.pack("<qqq", seed, choice_index, position)
    digest = hashlib.blake2b(packed, digest_size=8).digest()
    key: np.uint64 = np.uint64(int.from_bytes(digest, "little"))
    return key


def _mix(states: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64 but for its last step, in place."""
    shifted = states >> np.uint64(30)
    states ^= shifted
    states *= _FIRST_FACTOR
    np.right_shift(states, np.uint64(27), out=shifted)
    states ^= shifted
    states *= _SECOND_FACTOR
    return states
