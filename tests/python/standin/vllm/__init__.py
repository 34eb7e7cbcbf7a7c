# SPDX-License-Identifier: Apache-2.0
"""A stand-in for vLLM: the few classes that engram_client.vllm touches, with the
names, signatures and flow of vLLM 0.34, on the CPU and without the rest.
test_vllm.py compares its surface with an installed vLLM's, where there is one.
"""
__version__ = "0.34.0"
