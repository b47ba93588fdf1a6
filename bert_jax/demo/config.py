"""The knobs of the demo: its own, and those of the runs it consists of."""

import dataclasses

import ml_collections

from bert_jax import config as config_lib
from bert_jax import recipe_variants
from bert_jax.errors import UserError
from bert_jax.knobs import knob


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """`run.demo`."""

    kind: str = "demo"
    vocab_size: int = knob(8192, at_least=300)  # small, as is the text
    # Text that the vocabulary is learnt from.
    sample_megabytes: int = knob(8, at_least=1)
    # Share of the documents.
    held_out: float = knob(0.1, at_least=0.01, at_most=0.5)
    # Minutes to pretrain for, without evaluations; they choose the number of steps on
    # this machine, once. 0: the steps of the recipe.
    minutes: float = knob(0.0, at_least=0, at_most=10_000)
    # Examples that the classifier is fine-tuned on, at most.
    train_examples: int = knob(3000, at_least=1)
    # Repetitions of fine-tuning, with seeds that follow one another.
    repeats: int = knob(3, at_least=1)
    pretrain: config_lib.PretrainConfig = config_lib.PretrainConfig()
    finetune: config_lib.FinetuneConfig = config_lib.FinetuneConfig()

    def check(self, where: str) -> None:
        """Minutes are for one phase; what a part makes for the next is not given."""
        if self.minutes and len(self.pretrain.phases) != 1:
            raise UserError(
                f"{where}minutes={self.minutes:g} chooses the steps of one phase; "
                f"pretrain.phases has {len(self.pretrain.phases)}"
            )
        filled_in = {
            "pretrain.data.corpus": self.pretrain.data.corpus,
            "finetune.init_from": self.finetune.init_from,
            "finetune.task.train": self.finetune.task.train,
            "finetune.task.eval": self.finetune.task.eval,
        }
        for name, value in filled_in.items():
            if value:
                raise UserError(
                    f"{where}{name}={value!r}: the demo makes this itself; leave it"
                )


def shrink(cfg: ml_collections.ConfigDict) -> None:
    """Make the demo's recipe small enough for a minute or two."""
    cfg.update(vocab_size=500, sample_megabytes=1, train_examples=64, repeats=2)
    recipe_variants.shrink_pretraining(cfg.pretrain)
    recipe_variants.shrink_finetuning(cfg.finetune)
    cfg.finetune.loop.update(eval_every=4, checkpoint_every=0)
