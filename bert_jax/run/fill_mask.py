r"""Fill blanks in sentences with a pretrained model.

python -m bert_jax.run.fill_mask --init_from=PRETRAIN_WORKDIR \
      --text='The [MASK] of the list is returned.'
"""

import dataclasses

import jax
import numpy as np
from absl import flags

from bert_jax import config as config_lib
from bert_jax import knobs
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.objectives import mlm_nsp
from bert_jax.run import command_line
from bert_jax.training import checkpoint, sharding


@dataclasses.dataclass(frozen=True)
class Guess:
    """A word for a blank, and how probable the model finds it among all tokens."""

    word: str
    probability: float


def fill(init_from: str, texts: list[str], top: int = 5) -> list[list[list[Guess]]]:
    """The most probable words for each `[MASK]` of each text.

    Words that the vocabulary has as one token: pieces and punctuation are left out.

    Only here does `[MASK]` in a text mean a blank; the tokenizer takes it as text.

    Args:
      init_from: workdir of a pretraining run, or one checkpoint in it.
      texts: each with at least one blank.
      top: how many guesses.

    Returns:
      For each text, for each blank, guesses from the best down.

    Raises:
      UserError: no such checkpoint, or a text without a blank or too long.
    """
    source = checkpoint.find(init_from)
    metadata = checkpoint.read_metadata(source)
    tokenizer = tokenizer_lib.Tokenizer.loads(metadata["tokenizer"])
    encoder = knobs.from_dict(config_lib.EncoderConfig, metadata["encoder"])
    rows = [_to_ids(text, tokenizer, encoder) for text in texts]

    mesh = sharding.make_mesh(config_lib.MeshConfig(), jax.devices()[:1])
    objective = mlm_nsp.MlmNsp(encoder)
    shapes = sharding.state_shapes(objective.init, mesh)
    loaded = checkpoint.load_params(source, shapes)
    if loaded.new:
        raise UserError(f"{source} has no head to fill blanks; give a pretraining run")
    params = checkpoint.merge({}, loaded)

    length = max(map(len, rows))
    ids = np.full((len(rows), length), tokenizer.pad_id, np.int32)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    blanks = [np.flatnonzero(row == tokenizer.mask_id) for row in ids]
    positions = np.zeros((len(rows), max(map(len, blanks))), np.int32)
    for i, found in enumerate(blanks):
        positions[i, : len(found)] = found
    batch = (ids, np.zeros_like(ids), ids != tokenizer.pad_id, positions)

    @jax.jit
    def probabilities_of(params, batch):
        return jax.nn.softmax(objective.model.apply({"params": params}, *batch).mlm)

    probabilities = np.asarray(probabilities_of(params, batch))
    return [
        [_best(probabilities[i, j], tokenizer, top) for j in range(len(found))]
        for i, found in enumerate(blanks)
    ]


def _to_ids(
    text: str, tokenizer: tokenizer_lib.Tokenizer, encoder: config_lib.EncoderConfig
) -> list[int]:
    parts = text.split(tokenizer_lib.MASK)
    if len(parts) < 2:
        raise UserError(f"there is no {tokenizer_lib.MASK} in {text!r}")
    ids = [tokenizer.cls_id]
    for i, part in enumerate(tokenizer.encode_batch(parts)):
        ids += [tokenizer.mask_id] * (i > 0) + part
    ids.append(tokenizer.sep_id)
    if len(ids) > encoder.max_position_embeddings:
        raise UserError(
            f"a text has {len(ids)} tokens, the model has "
            f"{encoder.max_position_embeddings} positions"
        )
    return ids


def _best(
    probabilities: np.ndarray, tokenizer: tokenizer_lib.Tokenizer, top: int
) -> list[Guess]:
    words = [token.removeprefix("▁") for token in tokenizer.tokens]
    is_word = np.array([word.isalpha() for word in words]) & ~tokenizer.continues_word
    candidates = np.flatnonzero(is_word)
    order = np.argsort(-probabilities[candidates], kind="stable")[:top]
    return [Guess(words[i], float(probabilities[i])) for i in candidates[order]]


def describe(texts: list[str], filled: list[list[list[Guess]]]) -> str:
    """Sentences and guesses for people."""
    lines = []
    for text, blanks in zip(texts, filled, strict=True):
        lines.append(text)
        for guesses in blanks:
            words = (f"{g.word} ({g.probability:.0%})" for g in guesses)
            lines.append("    " + ", ".join(words))
    return "\n".join(lines)


def define_flags() -> None:
    """Define the flags of this entrypoint."""
    flags.DEFINE_string(
        "init_from", "", "Workdir of a pretraining run, or one checkpoint in it."
    )
    flags.DEFINE_multi_string("text", [], "A sentence with [MASK] in it; repeatable.")
    flags.DEFINE_integer("top", 5, "Guesses for each blank.", lower_bound=1)


def main() -> int:
    """The entrypoint."""
    source = command_line.required("init_from", "give a workdir, --init_from=DIR")
    texts = flags.FLAGS.text
    if not texts:
        raise UserError("--text is missing; give a sentence with [MASK] in it")
    print(describe(texts, fill(source, texts, flags.FLAGS.top)))
    return 0


if __name__ == "__main__":
    command_line.main(main, define_flags)
