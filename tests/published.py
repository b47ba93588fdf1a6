"""Folders that transformers saved, and what its models said, from two fixtures."""

import functools
import json
import pathlib

import jax.numpy as jnp
import numpy as np
import sentencepiece

from bert_jax.interop import sources
from bert_jax.model import heads, parameters
from bert_jax.model.inputs import Inputs

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
CASES = (
    "pretraining",
    "masked_lm",
    "causal_lm",
    "bare",
    "classification",
    "regression",
    "tagging",
    "answering",
    "choice",
)
# Of other architectures, with vocabularies of WordPiece and of byte-level BPE.
WITH_WORDPIECE = (
    "albert_pretraining",
    "albert_classification",
    "albert_bare",
    "electra_discriminator",
    "electra_generator",
    "electra_tagging",
    "electra_answering",
)
WITH_BYTES = ("roberta_masked_lm", "roberta_classification", "roberta_bare")
ALL = (*CASES, *WITH_WORDPIECE, *WITH_BYTES)


@functools.cache
def _all():
    stored = {}
    for name in ("published.npz", "relatives.npz"):
        with np.load(FIXTURES / name) as file:
            stored |= dict(file)
    return stored


def arrays(case, part):
    """What is stored of a case in a part, by name: "in", "labels" or "out"."""
    prefix = f"{case}/{part}/"
    return {
        name.removeprefix(prefix): value
        for name, value in _all().items()
        if name.startswith(prefix)
    }


def write(case, folder):
    """Write the folder that transformers saved."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in arrays(case, "files").items():
        (folder / name).write_bytes(content.tobytes())
    return folder


def sentencepiece_of_albert(folder, documents):
    """A folder with a vocabulary of 300 pieces that is made as ALBERT's is."""
    folder.mkdir(parents=True)
    lines = (line.lower() for d in documents for line in d.splitlines() if line.strip())
    with open(folder / "spiece.model", "wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=model,
            vocab_size=300,
            hard_vocab_limit=False,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            pad_piece="<pad>",
            unk_piece="<unk>",
            control_symbols="[CLS],[SEP],[MASK]",
            minloglevel=2,
        )
    return folder


def texts():
    return json.loads(str(_all()["texts"]))


def ids(case):
    """The ids that transformers gives to the texts."""
    return json.loads(str(_all()[f"{case}/ids"]))


def inputs(case):
    """Rows of tokens that the model was given."""
    given = arrays(case, "in")
    return Inputs(
        jnp.asarray(given["input_ids"], jnp.int32),
        jnp.asarray(given["attention_mask"]),
        jnp.asarray(given["token_type_ids"], jnp.int32),
    )


def params(source):
    """All parameters of a folder, as a tree."""
    read = sources.published(source)
    return parameters.unflatten(
        {path: jnp.asarray(read.parameter(path)) for path in read.shapes}
    )


def encode(encoder, params, inputs):
    """The pooled vector, if there is a pooler, and the hidden states of all layers."""

    def both(model, inputs):
        encoded = model.encoder(inputs, return_hidden_states=True)
        has_pooler = "pooler" in params["encoder"]
        pooled = model.encoder.pool(encoded.hidden[:, 0]) if has_pooler else None
        return pooled, encoded.hidden_states

    model = heads.SpanModel(encoder)
    given = {"params": {"encoder": params["encoder"]}}
    return model.apply(given, inputs, method=both)


def span_loss(case, expected):
    """The mean over both ends of -log softmax, over the positions of each row."""
    labels = arrays(case, "labels")
    mask = arrays(case, "in")["attention_mask"]
    losses = []
    for end in ("start", "end"):
        logits = np.where(mask, expected[f"{end}_logits"], -np.inf)
        chosen = np.take_along_axis(logits, labels[f"{end}_positions"][:, None], 1)
        losses.append(np.log(np.exp(logits).sum(1)) - chosen[:, 0])
    return np.mean(losses)
