"""Config of fine-tuning."""

import dataclasses

from bert_jax.config.fields import field, require
from bert_jax.config.tasks import ClassificationConfig, EmbeddingConfig, TaskConfig
from bert_jax.config.training import (
    LoopConfig,
    MeshConfig,
    OptimizerConfig,
    check_micro_batches,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """Config of fine-tuning. Defaults: google-research/bert, run_classifier.py.

    Unlike there, moments are corrected for their bias. Without the correction, some
    seeds fail on small sets (Mosbach et al. 2021, Zhang et al. 2021).
    """

    kind: str = "finetuning"
    seed: int = field(0, at_least=0)
    # Number of runs, with seeds `seed`, `seed` + 1 and so on, each in a folder.
    repeats: int = field(1, at_least=1, at_most=1000)
    # Workdir of a run, a checkpoint in it, or the folder of a published model.
    init_from: str = field("", free=True)
    init_fingerprint: str = ""  # of its parameters; "": not checked
    # Whether to load only config and tokenizer, as a baseline.
    random_init: bool = False
    # Top layers to reinitialise, together with the pooler (Zhang et al. 2021). Layers
    # that share their parameters count as one.
    reinit_layers: int = field(0, at_least=0)
    # Whether only head and pooler are trained.
    frozen: bool = False
    # Type of activations; "": as pretrained.
    dtype: str = field("", choices=("", "bfloat16", "float32"), free=True)
    # As in `EncoderConfig`. The checkpoint's value is ignored: it may have been set for
    # another machine.
    kernels: str = field("auto", choices=("auto", "off"), free=True)
    # What the backward pass recomputes, to save memory; "": as pretrained.
    remat: str = field("", choices=("", "none", "attention", "layer"), free=True)
    # Dropout of hidden states in encoder and head, and of attention probabilities.
    dropout_rate: float = field(0.1, at_least=0, less_than=1)
    attention_dropout_rate: float = field(0.1, at_least=0, less_than=1)
    epochs: float = field(3.0, more_than=0, at_most=10_000)
    batch_size: int = field(32, at_least=1)
    micro_batches: int = field(1, at_least=1, free=True)
    # Number of lengths that batches are padded to, chosen for the training rows; one
    # more is added if held-out rows are longer. A batch has the smallest length that
    # holds its rows. A step is compiled for each.
    lengths: int = field(6, at_least=1, at_most=16)
    # Keep the parameters that evaluate best by this score of the task, such as
    # "accuracy" or "f1", or by "loss"; "": keep the parameters of the last step.
    keep_best: str = ""
    task: TaskConfig = ClassificationConfig()
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=5e-5, warmup_fraction=0.1, bias_correction=True
    )
    mesh: MeshConfig = MeshConfig()
    loop: LoopConfig = LoopConfig(
        log_every=20, eval_every=0, eval_batches=0, checkpoint_every=0
    )

    def check(self, where: str) -> None:
        """Check that micro-batches have equal sizes, and that fields go together."""
        check_micro_batches(where, self)
        requirements = []
        if self.frozen:  # new layers would keep their random values
            requirements += [
                ("reinit_layers", 0, "frozen"),
                ("optimizer.layer_decay", 1.0, "frozen"),
            ]
        if isinstance(self.task, EmbeddingConfig):
            # A row is compared with the whole batch, and there is no head to train.
            requirements += [
                ("micro_batches", 1, "task.kind"),
                ("mesh.gradient_sum", "float32", "task.kind"),
                ("frozen", False, "task.kind"),
            ]
        if self.random_init:
            requirements.append(("reinit_layers", 0, "random_init"))
        require(self, where, requirements)
