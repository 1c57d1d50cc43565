"""The keyed Gumbel noise: what it depends on, and that it is Gumbel noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from engine.sampling.noise import PositionNoise

NUM_VALUES = 100_000
IDS = np.arange(NUM_VALUES)
Z_1E6 = 4.892  # a normal variable is further out than this with probability 1e-6
KEY = {"seed": 7, "choice_index": 1, "position": 100}
OTHER_KEYS = [
    pytest.param({**KEY, "seed": 8}, id="seed"),
    pytest.param({**KEY, "seed": -7}, id="negative-seed"),
    pytest.param({**KEY, "choice_index": 2}, id="choice"),
    pytest.param({**KEY, "position": 101}, id="position"),
    pytest.param({"seed": 7, "choice_index": 100, "position": 1}, id="swapped"),
]


def gumbel_noise(token_ids: np.ndarray, **key: int) -> np.ndarray:
    return PositionNoise(**key).of(token_ids)


def test_a_subset_of_tokens_gets_the_values_of_the_whole() -> None:
    subset = np.array([99_999, 3, 17, 3])
    assert gumbel_noise(subset, **KEY).tolist() == gumbel_noise(IDS, **KEY)[subset].tolist()


@pytest.mark.parametrize("other_key", OTHER_KEYS)
def test_another_key_gives_an_uncorrelated_stream(other_key: dict[str, int]) -> None:
    correlation = np.corrcoef(gumbel_noise(IDS, **KEY), gumbel_noise(IDS, **other_key))[0, 1]
    # Of independent streams it is normal with deviation 1 / sqrt(n); false alarm 1e-6.
    assert abs(correlation) < Z_1E6 / math.sqrt(NUM_VALUES)


@pytest.mark.parametrize("other_key", OTHER_KEYS)
def test_another_key_is_no_shift_of_the_same_stream(other_key: dict[str, int]) -> None:
    values = set(gumbel_noise(IDS, **KEY).tolist())
    # Two of 2 x 1e5 values out of 2^52 are equal with probability 2e-6.
    assert values.isdisjoint(gumbel_noise(IDS, **other_key).tolist())


def along_tokens() -> np.ndarray:
    return gumbel_noise(IDS, **KEY)


def along_positions() -> np.ndarray:
    token_id = np.array([5])
    return np.concatenate(
        [gumbel_noise(token_id, seed=1, choice_index=0, position=p) for p in range(20_000)]
    )


def along_seeds() -> np.ndarray:
    token_id = np.array([5])
    return np.concatenate(
        [gumbel_noise(token_id, seed=s, choice_index=0, position=9) for s in range(20_000)]
    )


@pytest.mark.parametrize("values", [along_tokens, along_positions, along_seeds])
def test_mean_and_variance_are_those_of_the_gumbel_distribution(values) -> None:
    noise = values()
    variance = math.pi**2 / 6
    # Bounds with a false alarm probability of 1e-6 each. The mean has variance v / n; the sample
    # variance has v^2 (kurtosis - 1) / n, and the kurtosis of a Gumbel variable is 5.4.
    assert abs(noise.mean() - np.euler_gamma) < Z_1E6 * math.sqrt(variance / noise.size)
    assert abs(noise.var() - variance) < Z_1E6 * variance * math.sqrt(4.4 / noise.size)


@pytest.mark.parametrize("values", [along_tokens, along_positions, along_seeds])
def test_the_distribution_is_gumbel(values) -> None:
    noise = values()
    distance = stats.kstest(noise, stats.gumbel_r.cdf).statistic
    # Dvoretzky-Kiefer-Wolfowitz: P(distance > d) <= 2 exp(-2 n d^2) = 1e-6.
    assert distance < math.sqrt(math.log(2 / 1e-6) / (2 * noise.size))


@pytest.mark.parametrize(
    ("token_id", "expected"),
    [
        # The ids whose random bits under this key are all ones and all zeros.
        pytest.param(-2651067978446934656, 36.736800569677, id="largest"),
        pytest.param(7341213262409385664, -3.603778989617, id="smallest"),
    ],
)
def test_the_extreme_values_are_finite(token_id: int, expected: float) -> None:
    noise = gumbel_noise(np.array([token_id]), seed=0, choice_index=0, position=0)
    assert noise.tolist() == pytest.approx([expected], rel=1e-9)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        pytest.param((0, 0, 0), [0.732050798387, 1.020733165650, 0.000349001957855], id="zero"),
        pytest.param((-5, 3, 8191), [-0.301273003857, 3.280598957984, 1.898443228528], id="other"),
        pytest.param(
            (2**63 - 1, 0, 1), [0.527194125388, 2.009127020663, 1.429540111622], id="largest-seed"
        ),
    ],
)
def test_values_stay_the_same_from_release_to_release(
    key: tuple[int, int, int], expected: list[float]
) -> None:
    seed, choice_index, position = key
    noise = gumbel_noise(
        np.array([0, 1, 49_151]), seed=seed, choice_index=choice_index, position=position
    )
    assert noise.tolist() == pytest.approx(expected, rel=1e-9)
