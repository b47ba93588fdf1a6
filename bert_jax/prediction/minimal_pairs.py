"""Minimal pairs: which of two sentences that differ in one point is more probable.

A model that does not predict from left to right has a pseudo-log-likelihood in place of
a probability: the sum of the log-probabilities of each token, given all other tokens
(Salazar et al. 2020, 2.1). BLiMP (Warstadt et al. 2020) is a set of such pairs.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.model import cross_entropy, heads, replaced_tokens
from bert_jax.model.xlnet.permutation_model import PermutationModel
from bert_jax.objectives import Batch, BatchShapes
from bert_jax.prediction import text_inputs
from bert_jax.prediction.filling import MaskedPositionLogits
from bert_jax.prediction.trained_model import TrainedModel
from bert_jax.tasks import Arrays, token_rows

_WINDOW = 256  # pairs whose tokens are in memory at once
_BATCH_TOKENS = 8192  # with padding
_MAX_BATCH_SIZE = 256
_BATCHES = 64  # batches whose rows are in memory at once


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedTokenScore(MaskedPositionLogits):
    """Log-probability of one token of each row, which is masked.

    If a batch has `words`, the number of the word of each token, later tokens of the
    same word are masked, too.
    """

    mask_id: int

    def batch_shapes(self, batch_size: int, length: int) -> BatchShapes:
        shapes = super().batch_shapes(batch_size, length)
        return shapes | {"words": shapes["input_ids"]}

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return scores [B]."""
        ids, positions = batch["input_ids"], batch["mlm_positions"]
        indices = jnp.arange(ids.shape[1])
        is_masked = indices == positions  # [B, L]
        if (words := batch.get("words")) is not None:
            same_word = words == jnp.take_along_axis(words, positions, axis=1)
            is_masked = same_word & (indices >= positions)
        labels = jnp.take_along_axis(ids, positions, axis=1)  # [B, 1]
        masked = jnp.where(is_masked, self.mask_id, ids)
        logits = self.logits(params, batch | {"input_ids": masked})  # [B, 1, V]
        return {"score": -cross_entropy.loss_and_accuracy(logits, labels)[0][:, 0]}


@dataclasses.dataclass(frozen=True)
class PermutedTokenScore(text_inputs.TextComputation):
    """Log-probability of one token of each row given all others, by XLNet."""

    model_arguments = ("ranks", "mlm_positions")

    @property
    def model(self) -> PermutationModel:
        return PermutationModel(self.encoder)

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return scores [B]."""
        ids, positions = batch["input_ids"], batch["mlm_positions"]
        labels = jnp.take_along_axis(ids, positions, axis=1)  # [B, 1]
        # The token comes last in the order of prediction: it sees all others, and no
        # other sees it.
        ranks = (jnp.arange(ids.shape[1]) == positions).astype(jnp.int32)  # [B, L]
        logits = self.apply(params, batch | {"ranks": ranks})
        return {"score": -cross_entropy.loss_and_accuracy(logits, labels)[0][:, 0]}


@dataclasses.dataclass(frozen=True)
class CausalScore(text_inputs.TextComputation):
    """Log-probability of each row after [CLS], by a left-to-right model."""

    @property
    def model(self) -> heads.CausalModel:
        return heads.CausalModel(self.encoder)

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return scores [B]."""
        following = jnp.roll(batch["input_ids"], -1, axis=1)
        logits = self.apply(params, batch)
        losses, _ = cross_entropy.loss_and_accuracy(logits, following)
        has_next = batch["attention_mask"][:, 1:]
        return {"score": -jnp.sum(losses[:, :-1] * has_next, axis=1)}


@dataclasses.dataclass(frozen=True)
class OriginalTokenScore(text_inputs.TextComputation):
    """Sum of log(1 - P(replaced)) over the tokens of each row, by ELECTRA.

    Attributes:
      generator: Architecture of the generator; `encoder` is the discriminator.
    """

    generator: config_lib.EncoderConfig

    method = "discriminate"

    @property
    def model(self) -> replaced_tokens.ReplacedTokensModel:
        return replaced_tokens.ReplacedTokensModel(self.encoder, self.generator)

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return scores [B]."""
        tokens = jax.nn.log_sigmoid(-self.apply(params, batch))  # [B, L]
        is_inside = _is_inside(batch["attention_mask"])
        return {"score": jnp.sum(tokens * is_inside, axis=1)}


def _is_inside(mask: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
    """Return bool [B, L]: True for tokens between the first and the last of a row."""
    indices = np.arange(mask.shape[1])
    return (indices > 0) & (indices < mask.sum(axis=1, keepdims=True) - 1)


def score_pairs(
    model: TrainedModel,
    pairs: Iterable[tuple[str, str]],
    *,
    within_word: bool = False,
    generator: bool = False,
) -> Iterator[tuple[float, float]]:
    """Yield the scores of both sentences of each pair; the higher is more probable.

    The score is the log-probability for a left-to-right model, the sum of log(1 -
    P(replaced)) for ELECTRA's discriminator, and the pseudo-log-likelihood for all
    other models. It counts the tokens of the sentence; from left to right, [SEP] too.

    Args:
      model: Pretrained model.
      pairs: Pairs of sentences, read as they are needed.
      within_word: Mask the later pieces of a word together with each piece, because
        they give it away (Kauf and Ivanova 2023, 3). For masked tokens only. Words are
        as `Tokenizer.word_ids` has them; the authors, too, use the tokenizer's words.
      generator: Use ELECTRA's generator in place of its discriminator.

    Raises:
      TextError: A sentence has no tokens, or too many. `index` names the pair.
      UserError: The checkpoint or its objective cannot score sentences.
    """
    computation = _computation(model, generator)
    if within_word and not isinstance(computation, MaskedTokenScore):
        raise UserError(
            f"{model.source}: within_word applies to masked tokens only; "
            f"{model.description()}"
        )
    if within_word and (suffix := model.tokenizer.word_suffix):
        raise UserError(
            "within_word needs tokens that show where a word begins; this tokenizer "
            f"marks its end, {suffix!r}"
        )
    hint = "give the folder of its generator" if generator else "give a pretraining run"
    engine = model.engine(computation, "to score sentences", hint)
    scores_each_token = "mlm_positions" in computation.model_arguments
    remaining = enumerate(pairs)
    while window := list(itertools.islice(remaining, _WINDOW)):
        sentences = _encode(model, window, within_word, engine.bucket)
        mask = sentences["attention_mask"]
        owners = np.arange(len(mask))  # sentence of each row
        if scores_each_token:  # a row for each token
            owners, positions = np.nonzero(_is_inside(mask))
        scores = np.zeros(len(mask))
        lengths = np.array([engine.bucket(size) for size in mask.sum(axis=1)])[owners]
        for length in np.unique(lengths).tolist():
            batch_size = min(max(1, _BATCH_TOKENS // length), _MAX_BATCH_SIZE)
            of_length = np.flatnonzero(lengths == length)
            step = _BATCHES * batch_size
            for chosen in np.split(of_length, range(step, len(of_length), step)):
                owner = owners[chosen]
                rows = {name: x[owner, :length] for name, x in sentences.items()}
                if scores_each_token:
                    rows["mlm_positions"] = positions[chosen, None].astype(np.int32)
                np.add.at(scores, owner, engine.outputs(rows, batch_size)["score"])
        yield from map(tuple, scores.reshape(-1, 2).tolist())


def _computation(model: TrainedModel, generator: bool) -> text_inputs.TextComputation:
    """Return the computation that suits the objective of a checkpoint."""
    electra = model.saved_config("objective", config_lib.ReplacedTokensConfig)
    if generator and not electra:
        raise UserError(
            f"{model.source}: generator applies to ELECTRA only; {model.description()}"
        )
    architecture = electra and electra.generator(model.encoder)
    if electra and not generator:
        return OriginalTokenScore(model.encoder, architecture)
    if model.saved_config("objective", config_lib.CausalLmConfig):
        return CausalScore(model.encoder)
    if model.saved_config("objective", config_lib.PermutationLmConfig):
        return PermutedTokenScore(model.encoder)
    mask_id = model.tokenizer.mask_id
    return MaskedTokenScore(model.encoder, architecture, mask_id=mask_id)


def _encode(
    model: TrainedModel,
    window: Sequence[tuple[int, tuple[str, str]]],
    with_words: bool,
    bucket: Callable[[int], int],
) -> Arrays:
    """Return rows of tokens: both sentences of the first pair, of the second, ...

    `bucket` returns the length of rows from the longest length that is needed. With
    words, there is an array `words` [R, L], the number of the word of each token.
    """
    for index, pair in window:
        if isinstance(pair, str):
            text = text_inputs.shortened(pair)
            message = f"{text} is one sentence; give pairs, [(FIRST, SECOND)]"
            raise text_inputs.TextError(index, message)
    pairs = text_inputs.to_pairs([pair for _, pair in window], first=window[0][0])
    sentences = [sentence for pair in pairs for sentence in pair]
    encoded = model.tokenizer.encode_batch(sentences)
    for i, (sentence, ids) in enumerate(zip(sentences, encoded, strict=True)):
        text_inputs.check_fits(model.encoder, window[i // 2][0], sentence, ids)
    length = bucket(2 + max(map(len, encoded)))
    single = [None] * len(encoded)
    rows = token_rows.join_pairs(encoded, single, model.tokenizer, length)[0]
    if with_words:
        # Special tokens and padding have the number 0, which no word has.
        words = [[0, *numbers] for numbers in model.tokenizer.word_ids(sentences)]
        rows["words"] = token_rows.pad(words, length, 0)[0]
    return rows
