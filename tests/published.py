"""Folders that transformers saved, and outputs of its models, from six files."""

import atexit
import functools
import io
import json
import pathlib
import shutil
import tempfile

import flax.serialization
import flax.traverse_util
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
import sentencepiece

from bert_jax.interop import checkpoints
from bert_jax.model import heads, parameters
from bert_jax.model.inputs import Inputs

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
FILES = "published", "relatives", "distilbert", "modernbert", "families", "deberta"


def _cases(file):
    """Return the names of the cases whose folders are in a file."""
    with np.load(FIXTURES / f"{file}.npz") as stored:
        names = [x.partition("/files/") for x in stored.files]
    return [case for case, _, name in names if name == "config.json"]


BERT = _cases("published")
ELECTRA = ("electra_discriminator", "electra_generator")  # one model
# All cases but a large one that has tests of its own.
ALL = [case for file in FILES for case in _cases(file) if case != "modernbert"]


@functools.cache
def _all():
    stored = {}
    for name in FILES:
        with np.load(FIXTURES / f"{name}.npz") as file:
            stored |= dict(file)
    return stored


def arrays(case, part):
    """Return the arrays of a case in a part, such as "in" or "grad", by name."""
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
    if case.startswith("xlnet"):
        (folder / "spiece.model").write_bytes(_pieces_of_xlnet())
    return folder


@functools.cache
def folder(case):
    """Return the folder of a case, shared by all tests that only read it."""
    parent = pathlib.Path(tempfile.mkdtemp(prefix="bert_jax-tests-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    return write(case, parent / case)


def edit(path, **values):
    """Set values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def arrays_of(folder):
    """Return all arrays in the safetensors files of a folder, by name."""
    arrays = {}
    for path in sorted(folder.glob("*.safetensors")):
        arrays |= safetensors.numpy.load_file(path)
    return arrays


def write_arrays(folder, arrays):
    """Write the arrays of a folder in place of those that it has."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")


def write_flax(folder):
    """Write the arrays of a folder as Flax's, too, and return their tree.

    The layout restates modeling_flax_pytorch_utils.py of `transformers` 4. Release 5
    has no Flax to compare with.
    """
    by_path = {}
    for name, array in arrays_of(folder).items():
        *parents, leaf = name.split(".")
        if leaf == "weight" and "norm" in name.lower():
            leaf = "scale"
        elif leaf == "weight" and "embeddings." in name:
            leaf = "embedding"
        elif leaf == "weight":
            leaf, array = "kernel", array.T
        by_path[*parents, leaf] = array
    tree = flax.traverse_util.unflatten_dict(by_path)
    content = flax.serialization.msgpack_serialize(tree)
    (folder / "flax_model.msgpack").write_bytes(content)
    return tree


def sentencepiece_of_albert(folder, documents):
    """Write a folder with a vocabulary of 300 pieces, trained as ALBERT's was."""
    folder.mkdir(parents=True)
    lines = (line.lower() for d in documents for line in d.splitlines() if line.strip())
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
    model = _pieces(lines, "[CLS],[SEP],[MASK]", pad_piece="<pad>", **ids)
    (folder / "spiece.model").write_bytes(model)
    return folder


def pieces_of_fairseq(documents):
    """Train a vocabulary of 300 pieces with SentencePiece's default special tokens."""
    return _pieces((line for d in documents for line in d.splitlines() if line), "")


@functools.cache
def _pieces_of_xlnet():
    """Train a vocabulary of 300 pieces with the special tokens of XLNet."""
    texts = [path.read_text() for path in sorted(FIXTURES.glob("make_*.py"))]
    lines = (line for text in texts for line in text.splitlines() if line.strip())
    return _pieces(lines, "<cls>,<sep>,<pad>,<mask>,<eod>,<eop>", pad_id=-1, unk_id=0)


def pieces_of_deberta():
    """Train a vocabulary of up to 300 pieces; [MASK] is not among them."""
    lines = pathlib.Path(__file__).read_text().splitlines()
    special = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
    settings = {f"{name}_id": i for i, name in enumerate(special)}
    settings |= {f"{name}_piece": token for name, token in special.items()}
    return _pieces(filter(str.strip, lines), "", **settings)


def _pieces(lines, control_symbols, **settings):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines,
        model_writer=model,
        hard_vocab_limit=False,
        control_symbols=control_symbols,
        minloglevel=2,
        **{"vocab_size": 300, "unk_piece": "<unk>", **settings},
    )
    return model.getvalue()


def texts():
    return json.loads(str(_all()["texts"]))


def ids(case):
    """Return the ids that transformers gives to the texts."""
    return json.loads(str(_all()[f"{case}/ids"]))


def inputs(case):
    """Return the rows of tokens of a case."""
    given = arrays(case, "in")
    segments = None
    if "token_type_ids" in given:
        # XLNet's third segment, of [CLS], does not exist in bert_jax.
        segments = jnp.asarray(rows(case, given["token_type_ids"]) % 2, jnp.int32)
    return Inputs(
        jnp.asarray(rows(case, given["input_ids"]), jnp.int32),
        jnp.asarray(rows(case, given["attention_mask"])),
        segments,
    )


def rows(case, values):
    """Put values [B, L, ...] of transformers into the order of bert_jax's rows."""
    if not case.startswith("xlnet"):
        return values
    return with_cls_first(values, arrays(case, "in")["attention_mask"])


def with_cls_first(values, is_text):
    """Reorder values [B, L, ...] of an XLNet: padding came first and [CLS] last."""
    moved = np.zeros_like(values)
    for of_row, row, mask in zip(moved, values, is_text, strict=True):
        of_row[: mask.sum()] = np.roll(row[mask], 1, axis=0)
    return moved


def params(source):
    """Return all parameters of a folder, as a tree."""
    read = checkpoints.open_published(source)
    return parameters.unflatten(
        {path: jnp.asarray(read.parameter(path)) for path in read.shapes}
    )


def encode(encoder, params, inputs):
    """Return the pooled vector, if there is a pooler, and all layers' hidden states."""

    def both(model, inputs):
        encoded = model.encoder(inputs, return_hidden_states=True)
        has_pooler = "pooler" in params["encoder"]
        pooled = model.encoder.pooler(encoded.hidden[:, 0]) if has_pooler else None
        return pooled, encoded.hidden_states

    model = heads.SpanModel(encoder)
    given = {"params": {"encoder": params["encoder"]}}
    return model.apply(given, inputs, method=both)


def logits_at_all_positions(objective, params, inputs):
    """Return the logits of masked tokens as if every token were masked."""
    count, length = inputs.input_ids.shape
    every = jnp.tile(jnp.arange(length), (count, 1))
    return objective.model.apply({"params": params}, inputs, every)
