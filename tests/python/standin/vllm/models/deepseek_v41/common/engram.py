# SPDX-License-Identifier: Apache-2.0
import torch
from torch import nn

from vllm.config import get_current_vllm_config
from vllm.distributed import (get_engram_dp_size,
                              get_tensor_model_parallel_rank,
                              get_tensor_model_parallel_world_size,
                              tensor_model_parallel_all_gather)


class EngramLayout:
    """layer_ids, num_embeddings, primes [layer][order][head], head_dim."""


def can_share_engram_tables(layout, block_size=32):
    """vLLM looks at /dev/shm; here there is never room."""
    return False


def _load_head_shard(param, loaded_weight):
    rows = param.shape[0]
    param.data.copy_(loaded_weight.narrow(0, param.engram_vocab_start, rows))


class ParallelEngramEmbedding(nn.Module):
    _weight_loader = staticmethod(_load_head_shard)

    def __init__(self, num_embeddings, dim, head_sizes, block_size=32,
                 cpu_offload=False, dp_shared_memory=False, use_thp=False):
        super().__init__()
        assert head_sizes and sum(head_sizes) <= num_embeddings
        self.cpu_offload = cpu_offload
        self.dp_shared_memory = dp_shared_memory
        self.use_thp = use_thp
        self.dp_size = 1 if dp_shared_memory else get_engram_dp_size()
        self.num_embeddings = num_embeddings
        self.dim = dim
        self.block_size = block_size
        self.n_hash_cols = len(head_sizes)
        self.tp_size = get_tensor_model_parallel_world_size()
        shards, shard = self._get_shard_info()
        self.part_n_hash_cols = -(-self.n_hash_cols // shards)
        self.head_start = shard * self.part_n_hash_cols
        end = self.head_start + self.part_n_hash_cols
        self.vocab_start_idx = sum(head_sizes[:self.head_start])
        self.vocab_end_idx = sum(head_sizes[:end])
        self.part_num_embeddings = self.vocab_end_idx - self.vocab_start_idx
        weight, scales = self._allocate_weights()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.weight_scale_inv = nn.Parameter(scales, requires_grad=False)
        for param in (self.weight, self.weight_scale_inv):
            param.weight_loader = self._weight_loader
            param.engram_vocab_start = self.vocab_start_idx

    def _get_shard_info(self):
        if self.dp_size == 1:
            return self.tp_size, get_tensor_model_parallel_rank()
        raise AssertionError("the plugin leaves no heads to replicas")

    def _allocate_weights(self):
        rows = self.part_num_embeddings
        return (torch.empty(rows, self.dim, dtype=torch.float8_e4m3fn),
                torch.empty(rows, self.dim // self.block_size,
                            dtype=torch.uint8))

    def _storage(self):
        return self.weight.data, self.weight_scale_inv.data

    def lookup(self, indices, out, background=False):
        """Plain torch, of what was loaded: what the plugin must equal."""
        weight, scales = self._storage()
        factor = torch.exp2(scales.float() - 127).repeat_interleave(
            self.block_size, dim=1)
        rows = (weight.float() * factor).bfloat16()
        out.zero_()
        heads = min(self.part_n_hash_cols, self.n_hash_cols - self.head_start)
        ids = indices[:, self.head_start:self.head_start + heads].long()
        here = (ids >= self.vocab_start_idx) & (ids < self.vocab_end_idx)
        out[:, :heads][here] = rows[ids[here] - self.vocab_start_idx]

    def forward(self, indices):
        out = torch.empty(indices.shape[0], self.part_n_hash_cols, self.dim,
                          dtype=torch.bfloat16)
        self.lookup(indices, out)
        if self.tp_size > 1:
            out = tensor_model_parallel_all_gather(out, dim=1)
        return out[:, :self.n_hash_cols]


class Engram(nn.Module):
    def __init__(self, config, quant_config, layout, layer_hash_index,
                 use_sequence_parallel, prefix, prefetch_stream=None):
        super().__init__()
        self.layer_hash_index = layer_hash_index
        self.use_sequence_parallel = use_sequence_parallel
        self.embed_tokens = self._create_embedding(layout, layer_hash_index)
        tokens = get_current_vllm_config().scheduler_config
        self._init_staging(tokens.max_num_batched_tokens, layout.head_dim)

    def _create_embedding(self, layout, layer_hash_index):
        config = get_current_vllm_config().engram_config
        assert config is not None
        return ParallelEngramEmbedding(
            layout.num_embeddings[layer_hash_index], layout.head_dim,
            tuple(size for order in layout.primes[layer_hash_index]
                  for size in order),
            cpu_offload=config.cpu_offload,
            dp_shared_memory=bool(config.dp_shared_memory),
            use_thp=config.use_thp)

    def _init_staging(self, max_tokens, head_dim):
        self.staged_rows = torch.empty(
            max_tokens * self.embed_tokens.dp_size,
            self.embed_tokens.part_n_hash_cols, head_dim,
            dtype=torch.bfloat16)

    def prepare_embeddings(self, hash_ids):
        rows = self.staged_rows[:hash_ids.shape[0]]
        assert rows.shape[0] == hash_ids.shape[0]
        self.embed_tokens.lookup(hash_ids, rows, background=True)

    def embed(self, hash_ids):
        rows = self.staged_rows[:hash_ids.shape[0]]
        if self.embed_tokens.tp_size == 1:
            return rows[:, :self.embed_tokens.n_hash_cols]
        if not self.use_sequence_parallel:
            rows = tensor_model_parallel_all_gather(rows, dim=1)
            return rows[:, :self.embed_tokens.n_hash_cols]
        tokens, local, dim = rows.shape
        ranks = self.embed_tokens.tp_size
        gathered = tensor_model_parallel_all_gather(rows, dim=0)
        whole = gathered.view(ranks, tokens, local, dim).transpose(0, 1)
        whole = whole.reshape(tokens, ranks * local, dim)
        chunk = -(-tokens // ranks)
        start = get_tensor_model_parallel_rank() * chunk
        out = torch.zeros(chunk, self.embed_tokens.n_hash_cols, dim,
                          dtype=rows.dtype)
        mine = whole[start:start + chunk, :self.embed_tokens.n_hash_cols]
        out[:mine.shape[0]] = mine
        return out
