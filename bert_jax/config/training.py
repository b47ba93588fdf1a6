"""Configs of optimizer, devices and loop, for pretraining and fine-tuning."""

import dataclasses
from typing import Any

from bert_jax.config.fields import field, require
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimizer and learning rate, with the defaults of google-research/bert.

    Source: google-research/bert, optimization.py. `training/optimizer.py` and
    `training/muon.py` have the sources of the other optimizers.
    """

    # "muon" orthogonalises the updates of the layers' matrices, and is "adamw" for all
    # other parameters, with the same learning rate.
    name: str = field("adamw", choices=("adamw", "stable_adamw", "lamb", "muon"))
    learning_rate: float = field(1e-4, at_least=0)  # peak
    # Shape after the warmup. "linear" and "cosine" fall from the peak to 0. "original"
    # falls linearly, but jumps down at the end of the warmup. "wsd" (warmup,
    # stable, decay) stays at the peak until the last `decay_fraction` of the steps.
    schedule: str = field("original", choices=("original", "linear", "cosine", "wsd"))
    warmup_fraction: float = field(0.01, at_least=0, at_most=1)  # of all steps
    # Share of the steps in which "wsd" falls to 0, as 1 - sqrt. 0: no decay.
    decay_fraction: float = field(0.1, at_least=0, at_most=1)
    beta1: float = field(0.9, at_least=0, less_than=1)
    beta2: float = field(0.999, at_least=0, less_than=1)
    epsilon: float = field(1e-6, more_than=0)
    # Not on biases and norms. It is multiplied by the learning rate. ModernBERT's 1e-5
    # is not: with its peak rate of 8e-4 it is 1e-5 / 8e-4 = 0.0125 here.
    weight_decay: float = field(0.01, at_least=0)
    # Whether Adam's moments are corrected for bias, as in the paper of "stable_adamw".
    bias_correction: bool = False
    # Factor of the learning rate from each layer to the one below it; 1: no decay.
    layer_decay: float = field(1.0, more_than=0, at_most=1)
    # Largest norm of the gradient over all parameters; 0: no clipping.
    clip_norm: float = field(1.0, at_least=0)

    def check(self, where: str) -> None:
        """Check that `decay_fraction` has an effect and leaves room for the warmup."""
        if self.schedule != "wsd":
            default = OptimizerConfig.decay_fraction
            require(self, where, [("decay_fraction", default, "schedule")])
        else:
            check_shares(where, self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Mesh of devices. The product of its sizes is the number of devices.

    TPU slices, and nodes of GPUs, with a slower network between them, split `data` and
    nothing else.
    """

    # Copies of the model, each with a part of the batch. One of the three sizes may be
    # -1, for the remaining devices.
    data: int = field(-1, at_least=-1, free=True)
    # Parts of parameters and batch.
    fsdp: int = field(1, at_least=-1, free=True)
    # Parts of heads, feed-forward and vocabulary.
    tensor: int = field(1, at_least=-1, free=True)
    # Whether moments are split over `data`, too (ZeRO-1).
    shard_optimizer: bool = field(False, free=True)
    # Type in which gradients are summed over `data`; bfloat16 sends half the bytes.
    gradient_sum: str = field("float32", choices=("float32", "bfloat16"), free=True)

    def check(self, where: str) -> None:
        """Check that axes have sizes, and that at most one is -1."""
        for axis in ("data", "fsdp", "tensor"):
            if getattr(self, axis) == 0:
                raise UserError(
                    f"{where}{axis}=0 must be at least 1, or -1 for the rest"
                )
        if [self.data, self.fsdp, self.tensor].count(-1) > 1:
            group = where.rstrip(".")
            raise UserError(f"{group}: only one of data, fsdp and tensor can be -1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """Intervals of logging, evaluation and checkpoints, and handling of faults."""

    log_every: int = field(100, at_least=1, free=True)  # steps
    # Steps; 0: only at the end of each phase.
    eval_every: int = field(10_000, at_least=0, free=True)
    # Batches of the held-out split in each evaluation; 0: all. Fine-tuning evaluates
    # all of them whatever this says.
    eval_batches: int = field(100, at_least=0, free=True)
    # Steps; 0: only at the end of each phase.
    checkpoint_every: int = field(5_000, at_least=0, free=True)
    # Number of checkpoints to keep, the newest.
    keep_checkpoints: int = field(2, at_least=1, free=True)
    # Largest number of steps to skip because loss or gradient is not finite.
    max_skipped_steps: int = field(0, at_least=0, free=True)
    # Seconds without progress, such as a step or a save, after which a process prints
    # all stacks and exits; 0: none.
    hang_seconds: int = field(1800, at_least=0, free=True)
    # First step to be profiled; 0: none.
    profile_step: int = field(0, at_least=0, free=True)
    profile_steps: int = field(3, at_least=1, free=True)
    # Folder for compiled programs; "": none.
    compilation_cache: str = field("", free=True)


def check_micro_batches(where: str, config: Any) -> None:
    """Check that micro-batches have equal sizes."""
    if config.batch_size % config.micro_batches:
        raise UserError(
            f"{where}micro_batches={config.micro_batches} does not divide "
            f"{where}batch_size={config.batch_size}"
        )


def check_shares(where: str, config: Any) -> None:
    """Check that warmup and decay of a schedule do not overlap."""
    if config.warmup_fraction + config.decay_fraction > 1:
        raise UserError(
            f"{where}warmup_fraction={config.warmup_fraction} and "
            f"{where}decay_fraction={config.decay_fraction} must not add up to more "
            "than 1"
        )
