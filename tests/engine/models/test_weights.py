"""Weights over real safetensors files, single and sharded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.models.weights import Weights, WeightsError

TENSORS = {
    "embed": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "norm": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "head": torch.tensor([0.25], dtype=torch.float16),
}


def write_single(folder: Path) -> None:
    save_file(TENSORS, folder / "model.safetensors")


def write_sharded(folder: Path) -> None:
    shards = {
        "model-00001-of-00002.safetensors": ["embed"],
        "model-00002-of-00002.safetensors": ["norm", "head"],
    }
    for shard, names in shards.items():
        save_file({name: TENSORS[name] for name in names}, folder / shard)
    weight_map = {name: shard for shard, names in shards.items() for name in names}
    write_index(folder, weight_map)


def write_index(folder: Path, weight_map: object) -> None:
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("write", [write_single, write_sharded])
def test_every_tensor_comes_back_bit_for_bit(tmp_path: Path, write) -> None:
    write(tmp_path)
    with Weights(tmp_path) as weights:
        assert set(weights) == set(TENSORS)
        assert len(weights) == 3
        for name, tensor in TENSORS.items():
            found = weights.expect(name, tuple(tensor.shape))
            assert found.dtype == tensor.dtype
            assert torch.equal(found, tensor)


def test_a_tensor_outlives_the_files(tmp_path: Path) -> None:
    write_single(tmp_path)
    with Weights(tmp_path) as weights:
        tensor = weights.expect("embed", (2, 3))
    assert torch.equal(tensor, TENSORS["embed"])


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    write_single(tmp_path)
    with Weights(tmp_path) as weights:
        assert "lm_head.weight" not in weights
        with pytest.raises(WeightsError, match=r"no tensor lm_head\.weight"):
            weights.expect("lm_head.weight", (2, 3))


def test_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    write_single(tmp_path)
    with Weights(tmp_path) as weights, pytest.raises(WeightsError) as caught:
        weights.expect("embed", (3, 2))
    assert "embed has shape (2, 3); the model needs (3, 2)" in str(caught.value)


def test_a_dtype_that_is_not_a_plain_float_is_refused(tmp_path: Path) -> None:
    save_file({"packed": torch.zeros(4, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with Weights(tmp_path) as weights, pytest.raises(WeightsError, match="packed has dtype I8"):
        weights.expect("packed", (4,))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickles_are_never_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"not even a pickle")
    with pytest.raises(WeightsError, match=f"{name}.*only safetensors are loaded"):
        Weights(tmp_path)


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"neither model\.safetensors nor"):
        Weights(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model-00002-of-00002\.safetensors"):
        Weights(tmp_path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    write_single(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(WeightsError, match=r"model\.safetensors cannot be read"):
        Weights(tmp_path)


def test_an_index_cannot_point_out_of_its_folder(tmp_path: Path) -> None:
    write_index(tmp_path, {"embed": "../other.safetensors"})
    with pytest.raises(WeightsError, match="not in the same folder"):
        Weights(tmp_path)


@pytest.mark.parametrize("weight_map", [None, []])
def test_an_index_without_a_weight_map_is_broken(tmp_path: Path, weight_map: object) -> None:
    write_index(tmp_path, weight_map)
    with pytest.raises(WeightsError, match=r"index\.json"):
        Weights(tmp_path)
