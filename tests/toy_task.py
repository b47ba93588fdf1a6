"""A task outside of the package: classify texts as short or long.

To add it takes a config, a class, and an entry in `finetuning.TASKS`.
"""

import dataclasses
import hashlib
import json

import numpy as np

from bert_jax import config as config_lib
from bert_jax.config.fields import field
from bert_jax.objectives import classification


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthConfig:
    kind: str = "length"
    fingerprint: str = ""
    length: int = field(16, at_least=8)
    examples: int = field(48, at_least=8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyFinetuneConfig(config_lib.FinetuneConfig):
    task: LengthConfig | config_lib.ClassificationConfig = LengthConfig()


class Length:
    def __init__(self, config, tokenizer):
        rng = np.random.default_rng(0)
        sizes = rng.integers(1, config.length - 2, config.examples)
        mask = np.arange(config.length) < sizes[:, None] + 2
        ids = np.where(mask, rng.integers(5, tokenizer.vocab_size, mask.shape), 0)
        rows = {
            "input_ids": ids.astype(np.int32),
            "segment_ids": np.zeros_like(ids, np.int32),
            "attention_mask": mask,
            "labels": (sizes > config.length // 2).astype(np.int32),
            "weights": np.ones(config.examples, np.float32),
        }
        half = config.examples // 2
        self.train = {name: values[:half] for name, values in rows.items()}
        self.held_out = {"eval": {name: x[half:] for name, x in rows.items()}}
        self.metrics = ("correct",)
        self.settings = {"kinds": 2}
        self.fingerprint = hashlib.sha256(ids.tobytes()).hexdigest()[:16]
        self.description = {"examples": config.examples - half}

    def objective(self, encoder):
        return classification.Classification(encoder, 2)

    def decode(self, name, outputs):
        return outputs["logits"].argmax(-1)

    def scores(self, name, predictions):
        correct = predictions == self.held_out[name]["labels"]
        return {"correct": int(correct.sum())}

    def write(self, folder, name, predictions):
        text = json.dumps(predictions.tolist())
        (folder / "lengths.json").write_text(text)
