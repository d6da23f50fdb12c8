#!/usr/bin/env python3
"""Writes tests/models/data/rope_frequencies.json: configurations, and the inverse frequencies transformers computes for
them.

Needs the Python packages transformers (5.23 wrote the file) and torch; run it by hand, the tests read only its
output. Each case is the text of a config.json and the frequencies after the model has seen a sequence of
max_position_embeddings tokens.

    make_rope_golden.py            rewrite the file
    make_rope_golden.py --check    compare with the file instead, to see how releases differ (4.57 refuses the cases
                                   named "*_5")
"""
import json
import pathlib
import sys

import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

FILE = pathlib.Path(__file__).resolve().parent / "data" / "rope_frequencies.json"
LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CASES = {
    "default": {},
    "theta_beside": {"rope_theta": 500000.0},
    "theta_inside_5": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "linear_type": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "linear_rope_type": {"rope_scaling": {"rope_type": "linear", "factor": 2.5}, "rope_theta": 500000.0},
    "linear_parameters_5": {"rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 250000.0}},
    "dynamic_type": {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "dynamic_rope_type": {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0,
                                           "original_max_position_embeddings": 64}, "rope_theta": 500000.0},
    "dynamic_parameters_5": {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 20000.0}},
    "llama3": {"rope_scaling": {"rope_type": "llama3", "original_max_position_embeddings": 128, **LLAMA3},
               "rope_theta": 500000.0},
    "llama3_original_beside_5": {"rope_scaling": {"rope_type": "llama3", **LLAMA3},
                                 "original_max_position_embeddings": 128, "rope_theta": 500000.0},
    "llama3_without_original_5": {"rope_scaling": {"rope_type": "llama3", **LLAMA3}, "rope_theta": 500000.0},
}


def document(more, head_dim):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4 * head_dim,
            "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 100,
            "max_position_embeddings": 512, **more}


def frequencies(config):
    made = transformers.LlamaConfig.from_dict(json.loads(json.dumps(config)))
    rotation = LlamaRotaryEmbedding(made)
    rotation(torch.zeros(1, 1, 1), torch.arange(made.max_position_embeddings)[None])
    assert rotation.attention_scaling == 1
    return [float(x) for x in rotation.inv_freq]


def main():
    check = "--check" in sys.argv[1:]
    known = {case["name"]: case for case in json.loads(FILE.read_text())["cases"]} if check else {}
    cases = []
    for name, more in CASES.items():
        for head_dim in (64, 128):
            config, label = document(more, head_dim), f"{name}_{head_dim}"
            try:
                got = frequencies(config)
            except (KeyError, ValueError, TypeError) as error:
                print(f"{label}: refused: {error!r}")
                continue
            if check:
                worst = max(abs(a - b) / b for a, b in zip(got, known[label]["frequencies"]))
                print(f"{label}: {'the same' if worst == 0 else f'differs by {worst:.2g}'}")
            cases.append({"name": label, "config": config, "frequencies": got})
    if not check:
        lines = ",\n".join(json.dumps(case) for case in cases)
        FILE.write_text(f'{{"transformers": "{transformers.__version__}", "cases": [\n{lines}\n]}}\n')


main()
