"""Helpers of recipes: their argument, the encoder's size, and the small form."""

from collections.abc import Sequence

import ml_collections

from bert_jax.errors import UserError


def parse(arg: str, variants: Sequence[str] = ()) -> tuple[str, bool]:
    """Parse a recipe's argument.

    Args:
      arg: A variant, or "smoke" for a run of seconds, or both: "mini,smoke".
      variants: Variants of the recipe; empty if there is one form only.

    Returns:
      The variant, "" if there are none; and whether the recipe is to be small.

    Raises:
      UserError: The argument is unknown, or names no variant.
    """
    words = [word for word in arg.split(",") if word]
    smoke = "smoke" in words
    variant = ",".join(word for word in words if word != "smoke")
    if smoke and variants and not variant:
        variant = variants[0]  # the small forms of variants are nearly equal
    if variant in (variants or ("",)):
        return variant, smoke
    if variants:
        wanted = f"one of {', '.join(variants)}, alone or with ',smoke'"
    else:
        wanted = "'smoke', for a run of seconds, or no argument"
    raise UserError(f"unknown argument {arg!r} of the recipe; expected {wanted}")


def set_size(
    cfg: ml_collections.ConfigDict, num_layers: int, hidden_size: int, num_heads: int
) -> None:
    """Set the encoder's size.

    As in BERT, the feed-forward network is four times as wide as the hidden states. The
    vocabulary is left open: it is the corpus's.
    """
    cfg.encoder.update(vocab_size=0, num_layers=num_layers, num_heads=num_heads)
    cfg.encoder.update(hidden_size=hidden_size, intermediate_size=4 * hidden_size)


def shrink_pretraining(cfg: ml_collections.ConfigDict) -> None:
    """Make a recipe small enough for a few seconds on a CPU.

    The number of phases, the optimizer, the schedule and the objective stay. So does
    the encoder of a recipe that begins with a checkpoint, which determines its shape.
    """
    cfg.loop.update(log_every=1, eval_every=2, eval_batches=2, checkpoint_every=2)
    if not cfg.init_from:
        cfg.encoder.update(hidden_size=32, num_layers=2, num_heads=2)
        cfg.encoder.update(intermediate_size=64, max_position_embeddings=64)
    for i, phase in enumerate(cfg.phases):
        phase.update(steps=3, length=32 * min(i + 1, 2), batch_size=8, micro_batches=1)
    if "masking" in cfg.objective:
        cfg.objective.masking.max_predictions = 5


def shrink_finetuning(cfg: ml_collections.ConfigDict) -> None:
    """Shrink a fine-tuning recipe to one epoch of short rows, for a CPU."""
    cfg.loop.update(log_every=1, eval_every=2, checkpoint_every=2)
    cfg.update(batch_size=8, epochs=1.0, lengths=1)
    cfg.task.length = 32
    if "stride" in cfg.task:
        cfg.task.update(stride=8, max_question=12)
