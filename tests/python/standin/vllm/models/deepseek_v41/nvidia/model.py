# SPDX-License-Identifier: Apache-2.0
from torch import nn

from vllm.config import get_current_vllm_config

from ..common.engram import Engram, can_share_engram_tables


class DeepseekV41LLMForCausalLM(nn.Module):
    """A pipeline stage with the Engram layers that are in it."""

    def __init__(self, layout, local_layers=None, sequence_parallel=False):
        super().__init__()
        config = get_current_vllm_config().engram_config
        if config.dp_shared_memory:
            config.dp_shared_memory = can_share_engram_tables(layout)
        self.layers = nn.ModuleDict({
            str(layer_id): nn.ModuleDict({"engram": Engram(
                None, None, layout, index, sequence_parallel,
                f"layers.{layer_id}.engram")})
            for index, layer_id in enumerate(layout.layer_ids)
            if local_layers is None or layer_id in local_layers})

    def prepare(self, hashes):
        for layer in self.layers.values():
            engram = layer["engram"]
            engram.prepare_embeddings(hashes[:, engram.layer_hash_index])

    def load_weights(self, weights):
        params, loaded = dict(self.named_parameters()), set()
        for name, weight in weights:
            name = name.replace("engram.embed.weight",
                                "engram.embed_tokens.weight")
            name = name.replace("engram.embed.scale",
                                "engram.embed_tokens.weight_scale_inv")
            if name not in params:
                continue  # of another stage
            params[name].weight_loader(params[name], weight)
            loaded.add(name)
        return loaded
