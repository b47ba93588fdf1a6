"""Checkpoints of google-research/bert, in and out; and of albert and electra, in.

TensorFlow is imported only when a checkpoint is read or written.
"""

import contextlib
import glob
import pathlib
import re
from collections.abc import Iterable

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop import configs, json_files, published, tokenizer_files
from bert_jax.interop.families import ALBERT, BERT, ELECTRA, family
from bert_jax.interop.safetensors import LazyArray

# Purposes that google-research/bert has a model for.
PURPOSES = (
    family.BARE,
    family.NEXT_SENTENCE,
    family.MASKED_LM,
    family.CLASSIFICATION,
    family.ANSWERING,
)
PREFIX = "bert_model.ckpt"
_INDEX = ".index"
# Names in `transformers` that `huggingface_name` cannot derive part by part.
_HEADS = {
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
}
# Patterns in the names of google-research/albert and electra, and their replacements in
# `transformers`. `huggingface_name` does the rest.
_ALBERT_PARTS = {
    r"^bert/": "albert/",
    r"/transformer/group_(\d+)/inner_group_0/": r"/albert_layer_groups/\1/layers/0/",
    r"/layers/0/LayerNorm/": "/layers/0/attention/LayerNorm/",
    r"/LayerNorm_1/": "/full_layer_layer_norm/",
    r"/attention_1/(self|output)/": "/attention/",
    r"/ffn_1/intermediate/dense/": "/ffn/",
    r"/ffn_1/intermediate/output/dense/": "/ffn_output/",
    r"/layers/": "/albert_layers/",
    r"/pooler/dense/": "/pooler/",
    r"^cls/predictions/transform/": "predictions/",
    r"^cls/predictions/output_bias$": "predictions/bias",
    r"^cls/seq_relationship/output_(weight|bias)s?$": r"sop_classifier/classifier/\1",
}
_ELECTRA_PARTS = {r"^(discriminator_predictions/dense)_1/": r"\1_prediction/"}
# Columns of a head in all of google-research/electra, whose checkpoints have no config.
_ELECTRA_HEAD = 64
_EMBEDDING = re.compile(r"(bert|albert|electra)/embeddings/\w+_embeddings")
_LEAVES = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias"}
# Variables of the optimizer.
_TRAINING = re.compile(r".*/adam_[mv]|global_step")


def is_checkpoint(path: pathlib.Path) -> bool:
    """Return whether a path, a folder or a prefix of files, is a checkpoint."""
    names = json_files.GOOGLE_CONFIG, json_files.ALBERT_CONFIG
    return _index(path) is not None or any((path / name).exists() for name in names)


def is_part_of_other_checkpoint(path: pathlib.Path, name: str) -> bool:
    """Return whether a file in the folder belongs to another checkpoint."""
    index = _index(path)
    return ".ckpt" in name and not (index and name.startswith(f"{index.stem}."))


def _index(path: pathlib.Path) -> pathlib.Path | None:
    """Return the index of a checkpoint; in a folder the published or newest one."""
    if not path.is_dir():
        index = path if path.suffix == _INDEX else path.with_name(path.name + _INDEX)
        return index if index.exists() else None

    def order(index):
        step = re.search(r"-(\d+)\.index$", index.name)
        return index.name != PREFIX + _INDEX, -int(step[1]) if step else 0, index.name

    return min(path.glob("*" + _INDEX), key=order, default=None)


def read(path: pathlib.Path) -> published.Published:
    """Read a checkpoint.

    Raises:
      UserError: A file is missing or damaged.
    """
    folder = path if path.is_dir() else path.parent
    is_albert = (folder / json_files.ALBERT_CONFIG).exists()
    config = None
    if is_albert:
        config = configs.read_tensorflow(folder / json_files.ALBERT_CONFIG, ALBERT)
    elif (folder / json_files.GOOGLE_CONFIG).exists():
        config = configs.read_tensorflow(folder / json_files.GOOGLE_CONFIG, BERT)
    if not (index := _index(path)):
        raise UserError(f"{path} has no {PREFIX}{_INDEX}")
    prefix = index.with_suffix("")
    files = tuple(sorted(folder.glob(f"{glob.escape(prefix.name)}.data-*-of-*")))
    if not files:
        raise UserError(f"{folder} has no {prefix.name}.data-00000-of-00001")
    arrays = _arrays(prefix, _ALBERT_PARTS if is_albert else _ELECTRA_PARTS)
    if not config:
        config = _config_of_electra(folder / json_files.GOOGLE_CONFIG, arrays)
    return published.assemble(
        str(path),
        (index, *files),
        config,
        tokenizer_files.read_google(folder),
        arrays,
        tokens_are_lines=not is_albert,
    )


def _config_of_electra(
    path: pathlib.Path, arrays: dict[str, LazyArray]
) -> configs.ConfigFile:
    """Infer the config of a discriminator from the shapes of its arrays."""
    tables = "word", "position", "token_type"
    names = [f"electra.embeddings.{name}_embeddings.weight" for name in tables]
    layer = "electra.encoder.layer.{}.output.dense.weight"
    if any(name not in arrays for name in (*names, layer.format(0))):
        raise UserError(f"{path.parent} has no {path.name}")
    vocabulary, positions, types = (arrays[name].shape for name in names)
    hidden_size, intermediate_size = arrays[layer.format(0)].shape
    values = {
        "vocab_size": vocabulary[0],
        "embedding_size": vocabulary[1],
        "max_position_embeddings": positions[0],
        "type_vocab_size": types[0],
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_attention_heads": hidden_size // _ELECTRA_HEAD,
        "num_hidden_layers": sum(layer.format(i) in arrays for i in range(len(arrays))),
        "hidden_act": "gelu",  # exact, as in modeling.py there
    }
    file = json_files.JsonFile(path, values)
    encoder = configs.parse_encoder(file, ELECTRA)
    return configs.ConfigFile(file, ELECTRA, "", encoder)


def _arrays(prefix: pathlib.Path, parts: dict[str, str]) -> dict[str, LazyArray]:
    """Return the arrays by Hugging Face's names; each is read on demand.

    `parts` are replaced in the names first.
    """
    import tensorflow as tf

    @contextlib.contextmanager
    def reading(what):
        try:
            yield
        except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
            line = str(error).strip().splitlines()[0]
            raise UserError(f"{what} is damaged: {line}") from error

    with reading(prefix):
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = reader.get_variable_to_shape_map()
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in shapes:
        raise UserError(
            f"{prefix} is a checkpoint of TensorFlow 2; bert_jax reads those of "
            "google-research/bert, albert and electra, which are of TensorFlow 1"
        )

    def array(name, shape):
        def get():
            with reading(f"{prefix}: {name}"):
                value = reader.get_tensor(name)
            return value.T if _is_kernel(name) else value

        return LazyArray(tuple(shape)[::-1] if _is_kernel(name) else tuple(shape), get)

    def renamed(name):
        for part, new in parts.items():
            name = re.sub(part, new, name)
        return huggingface_name(name)

    return {
        renamed(name): array(name, shape)
        for name, shape in sorted(shapes.items())
        if not _TRAINING.fullmatch(name)
    }


def _is_kernel(name: str) -> bool:
    return name.endswith("/kernel")


def huggingface_name(name: str) -> str:
    """Return Hugging Face's name of a variable. Unknown names get dots for slashes."""
    if name in _HEADS:
        return _HEADS[name]
    parent, _, leaf = name.rpartition("/")
    if _EMBEDDING.fullmatch(name):
        parent, leaf = name, "weight"
    parts = re.sub(r"/layer_(\d+)/", r"/layer/\1/", f"{parent}/").strip("/").split("/")
    return ".".join([*parts, _LEAVES.get(leaf, leaf)])


def original_name(name: str) -> str:
    """Return the name of a variable; the inverse of `huggingface_name`."""
    heads = {published: original for original, published in _HEADS.items()}
    if name in heads:
        return heads[name]
    parent, _, leaf = name.rpartition(".")
    parent = re.sub(r"\blayer\.(\d+)", r"layer_\1", parent).replace(".", "/")
    if _EMBEDDING.fullmatch(parent):
        return parent
    if parent.endswith("LayerNorm"):
        return f"{parent}/{'gamma' if leaf == 'weight' else 'beta'}"
    return f"{parent}/{'kernel' if leaf == 'weight' else 'bias'}"


def write(arrays: Iterable[tuple[str, np.ndarray]], folder: pathlib.Path) -> list[str]:
    """Write a checkpoint, and return the names. All arrays are in memory."""
    import tensorflow as tf

    variables = {original_name(name): array for name, array in arrays}
    tf.raw_ops.SaveV2(
        prefix=str(folder / PREFIX),
        tensor_names=list(variables),
        shape_and_slices=[""] * len(variables),
        tensors=[x.T if _is_kernel(name) else x for name, x in variables.items()],
    )
    return sorted(variables)
