"""Gumbel noise that depends on nothing but a key and the token id.

The key is (seed, choice index, absolute position). Token t's noise is made from the t-th output of
SplitMix64 (Steele, Lea and Flood 2014) seeded with a hash of the key, so any subset of tokens gets
the values that the whole vocabulary would.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import numpy.typing as npt

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)


def gumbel_noise(
    token_ids: npt.NDArray[np.int64], *, seed: int, choice_index: int, position: int
) -> npt.NDArray[np.float64]:
    """Standard Gumbel values, one for each token id."""
    bits = _splitmix64(_key(seed, choice_index, position), token_ids.astype(np.uint64))
    # 52 bits, since the half of a 53rd would round the largest value up to 1, and its noise to inf.
    uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    noise: npt.NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def _key(seed: int, choice_index: int, position: int) -> np.uint64:
    packed = struct.pack("<qqq", seed, choice_index, position)
    digest = hashlib.blake2b(packed, digest_size=8).digest()
    key: np.uint64 = np.uint64(int.from_bytes(digest, "little"))
    return key


def _splitmix64(key: np.uint64, index: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z: npt.NDArray[np.uint64] = (index + np.uint64(1)) * _INCREMENT + key
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z
