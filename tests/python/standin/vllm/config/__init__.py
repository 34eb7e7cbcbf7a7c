# SPDX-License-Identifier: Apache-2.0
import contextlib
from dataclasses import dataclass, field

_current = None


@dataclass
class EngramConfig:
    cpu_offload: bool = True
    dp_shared_memory: bool | None = None
    use_thp: bool = False


@dataclass
class SchedulerConfig:
    max_num_batched_tokens: int = 64


@dataclass
class VllmConfig:
    engram_config: EngramConfig | None = field(default_factory=EngramConfig)
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    additional_config: dict = field(default_factory=dict)


@contextlib.contextmanager
def set_current_vllm_config(config):
    global _current
    before, _current = _current, config
    try:
        yield
    finally:
        _current = before


def get_current_vllm_config_or_none():
    return _current


def get_current_vllm_config():
    assert _current is not None, "no vLLM configuration is set"
    return _current
