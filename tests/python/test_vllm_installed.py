# SPDX-License-Identifier: Apache-2.0
"""The plugin on the classes of an installed vLLM, with its distribution and its
device replaced; and the stand-in of test_vllm.py compared with them.

vLLM can be imported once in a process, so this comes after test_vllm.py.
"""
import importlib
import importlib.metadata
import importlib.util
import inspect
import itertools
import pathlib
from types import SimpleNamespace

import numpy as np
import pytest

import engram_client.vllm as plugin
from python_setting import COLS, DIM, LAYERS
from vllm_model import forget, wanted

torch = pytest.importorskip("torch")
STANDIN = pathlib.Path(__file__).with_name("standin") / "vllm"


@pytest.fixture(scope="module")
def engram():
    """vLLM's module, patched."""
    try:
        version = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("vLLM is not installed")
    if ".".join(version.split(".")[:2]) not in plugin.CHECKED:
        pytest.skip(f"vLLM {version} is none of {plugin.CHECKED}")
    forget()
    plugin.register()
    return importlib.import_module(plugin.ENGRAM)


def surface(module):
    embedding, engram = module.ParallelEngramEmbedding, module.Engram
    names = {embedding: ["__init__", "lookup", "_get_shard_info",
                         "_allocate_weights", "_storage", "forward"],
             engram: ["__init__", "_create_embedding", "_init_staging",
                      "prepare_embeddings", "embed"]}
    return {f"{owner.__name__}.{name}":
            list(inspect.signature(getattr(owner, name)).parameters)
            for owner, list_ in names.items() for name in list_}


def test_the_stand_in_is_faithful(engram):
    spec = importlib.util.spec_from_file_location(
        "standin_engram", STANDIN / "models/deepseek_v41/common/engram.py")
    standin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(standin)
    assert surface(standin) == surface(engram)


def test_its_layers_read_the_sidecar(engram, monkeypatch, sidecar, layout,
                                     hashes):
    """Three tensor-parallel ranks of one of two replicas."""
    monkeypatch.setenv("ENGRAMD_SOCKET", str(sidecar.socket))
    config = SimpleNamespace(additional_config={}, engram_config=SimpleNamespace(
        cpu_offload=True, dp_shared_memory=False, use_thp=False))
    monkeypatch.setattr(engram, "get_current_vllm_config", lambda: config)
    for name, value in (("get_tensor_model_parallel_world_size", 3),
                        ("get_engram_dp_size", 2), ("is_uva_available", True)):
        monkeypatch.setattr(engram, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device:
                        SimpleNamespace(multi_processor_count=1))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    made = layout(engram)
    parts = {}
    for rank, index in itertools.product(range(3), range(2)):
        monkeypatch.setattr(engram, "get_tensor_model_parallel_rank",
                            lambda rank=rank: rank)
        embedding = engram.Engram._create_embedding(None, made, index)
        assert isinstance(embedding, engram.ParallelEngramEmbedding)
        assert embedding.dp_size == 1 and embedding.weight.numel() == 0
        out = torch.empty(len(hashes), embedding.part_n_hash_cols, DIM,
                          dtype=torch.bfloat16)
        embedding.lookup(hashes[:, index], out, background=True)
        parts[index, rank] = out
        for parameter in embedding.parameters():
            parameter.weight_loader(parameter, torch.empty(7))
    for index, layer in enumerate(LAYERS):
        whole = torch.cat([parts[index, rank] for rank in range(3)], dim=1)
        assert np.array_equal(whole[:, :COLS].double().numpy(),
                              wanted(layer, hashes))
    assert engram.can_share_engram_tables(made)
    for embedding in plugin._embeddings:
        embedding.engramd.detach()


@pytest.mark.parametrize("name", plugin.MODELS)
def test_its_models_leave_files_out(engram, monkeypatch, name):
    monkeypatch.setenv("ENGRAMD_SOCKET", "/nowhere")
    try:
        module = importlib.import_module(name)
    except (ImportError, RuntimeError, AttributeError) as error:
        pytest.skip(f"vLLM's {name} can not be imported here: {error}")
    owner = getattr(module, plugin.MODELS[name])
    for weight, unused in (("layers.1.engram.embed.weight", True),
                           ("layers.1.engram.embed.scale", True),
                           ("layers.1.engram.wkv.weight", False)):
        assert owner.is_unused_checkpoint_weight(None, weight) == unused


def test_its_loader_takes_parameters_without_rows(engram):
    """What the plugin's quant_method relies on."""
    loader = pytest.importorskip(
        "vllm.model_executor.model_loader.default_loader",
        exc_type=ImportError)
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.empty(0, 4), requires_grad=False)
    layer.quant_method = plugin._NothingToLoad()
    model = torch.nn.Module()
    model.layer = layer
    check = loader.DefaultModelLoader.track_weights_loading
    check(None, model, set(), quantized=True)
    layer.quant_method = None
    with pytest.raises(ValueError, match="layer.weight"):
        check(None, model, set(), quantized=True)
