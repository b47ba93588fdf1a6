"""Config of the demo and of the runs in it."""

import dataclasses
import operator

from bert_jax import config as config_lib
from bert_jax.config.fields import field
from bert_jax.errors import UserError

# Scores that can decide on the best parameters; "": the last ones are kept.
_SCORES = ("", "loss", "classification_loss", "accuracy", "macro_f1", "matthews")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Config of `run.demo`."""

    kind: str = "demo"
    vocab_size: int = field(8192, at_least=300)  # small, as is the text
    # Text from which the vocabulary is learnt.
    sample_megabytes: int = field(8, at_least=1)
    # Share of the documents that is held out.
    held_out: float = field(0.1, at_least=0.01, at_most=0.5)
    # Training examples of the classifier, at most.
    train_examples: int = field(3000, at_least=2)
    # Repetitions of fine-tuning, with consecutive seeds.
    repeats: int = field(3, at_least=1)
    pretrain: config_lib.PretrainConfig = config_lib.PretrainConfig()
    finetune: config_lib.FinetuneConfig = config_lib.FinetuneConfig()

    def check(self, where: str) -> None:
        """Check kinds and sizes, and that the fields that the demo sets are empty."""
        for name, kind in (
            ("pretrain.objective", "masked_lm"),
            ("finetune.task", "classification"),
        ):
            if (given := operator.attrgetter(name)(self).kind) != kind:
                raise UserError(
                    f"{where}{name}.kind={given!r}: the demo needs {kind!r}"
                )
        for name in (
            "pretrain.data.corpus",
            "finetune.init_from",
            "finetune.random_init",
            "finetune.task.name",
            "finetune.task.train",
            "finetune.task.eval",
            "finetune.task.text_a",
            "finetune.task.text_b",
            "finetune.task.label",
            "finetune.task.test",
            "finetune.task.folder",
        ):
            if value := operator.attrgetter(name)(self):
                raise UserError(
                    f"{where}{name}={value!r}: the demo sets this field; leave it empty"
                )
        if (target := self.finetune.task.target) != "class":
            raise UserError(
                f"{where}finetune.task.target={target!r}: the demo's task has classes"
            )
        # Mistakes that would be found after pretraining only.
        for name, value, limit in (
            ("task.length", self.finetune.task.length, "max_position_embeddings"),
            ("reinit_layers", self.finetune.reinit_layers, "num_distinct_layers"),
        ):
            if value > (most := getattr(self.pretrain.encoder, limit)):
                raise UserError(
                    f"{where}finetune.{name}={value} is more than "
                    f"{where}pretrain.encoder.{limit}={most}"
                )
        if (score := self.finetune.keep_best) not in _SCORES:
            raise UserError(
                f"{where}finetune.keep_best={score!r} must be one of "
                f"{', '.join(_SCORES[1:])}"
            )
        if self.finetune.repeats != 1:
            raise UserError(
                f"{where}finetune.repeats={self.finetune.repeats}: set "
                f"{where}repeats instead"
            )
