# SPDX-License-Identifier: Apache-2.0
"""What the models of an installed `transformers` say; run by a Python that may
have it.  Ends with 77 and one line that says why where it has no such model.

    transformers_reference.py engram TOKENIZER < JSON
        {"config": keys of config.json, "texts": [[token, ...], ...]} ->
        {"primes": [layers][columns], "multipliers": [layers][n-gram],
         "ids": [texts][tokens][layers][columns]}
    transformers_reference.py ple < JSON
        {"config": ..., "texts": ...} -> {"moduli": [columns],
        "multipliers": [n-gram], "ids": [texts][tokens][columns]}
    transformers_reference.py added DIR
        how many tokens the tokenizer of a directory has once it is loaded,
        and, after it is saved, the files of that in DIR/saved
"""
import importlib
import json
import pathlib
import re
import sys
import types


def none(why):
    print(why)
    sys.exit(77)


def find_class(pattern):
    """The module of the one model that has a class of such a name, and the
    class."""
    import transformers
    models = pathlib.Path(transformers.__file__).parent / "models"
    for file in sorted(models.glob("*/modeling_*.py")):
        found = re.search(rf"^class ({pattern})\b", file.read_text(), re.M)
        if found:
            module = importlib.import_module(
                f"transformers.models.{file.parent.name}.{file.stem}")
            return module, getattr(module, found[1])
    return none(f"transformers {transformers.__version__} has no class "
                f"{pattern}")


def engram(tokenizer_file):
    import torch
    from transformers import PreTrainedTokenizerFast
    module, state_class = find_class(r"Deepseek\w*NgramHashState")
    wanted = json.load(sys.stdin)
    config = types.SimpleNamespace(**wanted["config"])
    config.engram_pad_id = config.engram_pad_token_id
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=tokenizer_file)
    state = state_class(config)
    if not hasattr(state, "bind_tokenizer"):
        none(f"{state_class.__name__} has no bind_tokenizer: an interface "
             "that this test does not know")
    state.bind_tokenizer(tokenizer)
    layout = module.EngramLayout.from_config(config)
    return {
        "primes": [[p for size in layer for p in size]
                   for layer in layout.primes],
        "multipliers": state.multipliers.tolist(),
        "ids": [state(torch.tensor([text]), None, None)[0].tolist()
                for text in wanted["texts"]]}


def ple():
    import torch
    _, embedding_class = find_class(r"Qwen4Exp\w*NGramEmbedding")
    wanted = json.load(sys.stdin)
    config = types.SimpleNamespace(**wanted["config"])

    class Numbers(torch.nn.Module):
        """In place of the rows: their numbers."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, ids):
            return ids.unsqueeze(-1)

    # Not allocated: the published table has 95 GiB.
    real = torch.nn.Embedding
    torch.nn.Embedding = lambda *_: Numbers()
    try:
        columns = (config.ngram_size - 1) * config.heads_per_ngram
        embedding = embedding_class(config, 32 * columns, 1)
    finally:
        torch.nn.Embedding = real
    return {"moduli": embedding.head_vocab_sizes,
            "multipliers": embedding.layer_multipliers.tolist(),
            "ids": [embedding(torch.tensor([text]), None)[0].tolist()
                    for text in wanted["texts"]]}


def added(directory):
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.save_pretrained(pathlib.Path(directory) / "saved")
    return len(tokenizer)


def main():
    try:
        import transformers  # noqa: F401
        if sys.argv[1] != "added":
            import torch  # noqa: F401
    except ImportError as error:
        none(f"{sys.executable}: {error}")
    what = {"engram": engram, "ple": ple, "added": added}[sys.argv[1]]
    print(json.dumps(what(*sys.argv[2:])))


main()
