# SPDX-License-Identifier: Apache-2.0
"""What vLLM's DefaultModelLoader does with names, files and parameters."""


def load(model, files):
    """`files`: a list of {name: tensor}.  Returns how many were opened."""
    unused = getattr(model, "is_unused_checkpoint_weight", None)
    if unused is not None:
        files = [file for file in files
                 if not all(unused(name) for name in file)]
    loaded = model.load_weights(
        (name, tensor) for file in files for name, tensor in file.items())
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if getattr(method, "process_weights_after_loading", None):
            for parameter, value in module.named_parameters():
                if value.numel() == 0:
                    loaded.add(f"{name}.{parameter}")
    missing = {name for name, _ in model.named_parameters()} - loaded
    if missing:
        raise ValueError(f"weights were not initialized: {missing}")
    return len(files)
