"""Conversion of checkpoints between formats."""

import dataclasses
import math
import pathlib
from collections.abc import Iterator

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.interop import (
    configs,
    huggingface,
    huggingface_folder,
    json_files,
    lazy_checkpoint,
    model_card,
    model_classes,
    output_folder,
    safetensors,
    sentence_transformers,
    tensorflow,
    tokenizer_files,
)
from bert_jax.interop.families import BERT
from bert_jax.interop.families.family import BARE, TAGGING
from bert_jax.interop.huggingface import ModelSpec
from bert_jax.interop.lazy_checkpoint import LazyCheckpoint
from bert_jax.interop.safetensors import LazyArray
from bert_jax.model import parameters
from bert_jax.training import checkpoint as checkpoint_lib

# Subfolder of an exported ELECTRA for its generator.
GENERATOR = "generator"
# File that marks a folder as one of a format.
_LAST = {
    "huggingface": huggingface_folder.CONFIG,
    "tensorflow": json_files.GOOGLE_CONFIG,
}


@dataclasses.dataclass(frozen=True)
class Converted:
    """Result of a conversion."""

    name: str  # class of `transformers` that the checkpoint corresponds to, or ""
    written: list[str]  # names of the arrays in the output
    # Heads of the class that the checkpoint lacks, and single parameters of heads.
    missing: list[str]
    # Arrays and modules of the checkpoint that are not in the output.
    ignored: list[str]


def convert(source: str, folder: str, to: str = "") -> Converted:
    """Convert a checkpoint to another format.

    The output folder appears when it is complete.

    `to` is "huggingface", "tensorflow" or "native", which is bert_jax's own format. By
    default, native checkpoints become "huggingface", and others "native".

    Raises:
      UserError: The checkpoint is unusable or has no equivalent in that format, or the
        folder cannot be written.
    """
    output_folder.check(folder)
    return export(lazy_checkpoint.read(source), folder, to)


def export(checkpoint: LazyCheckpoint, folder: str, to: str = "") -> Converted:
    """Convert a checkpoint that is open; see `convert`."""
    to = to or ("native" if checkpoint.spec else "huggingface")
    if to == "native":
        spec, kept = checkpoint.spec, set(checkpoint.params)
        written = write_native(checkpoint, folder)
    else:
        spec = model_classes.export_spec(checkpoint.metadata, checkpoint.source)
        generator = lazy_checkpoint.extract_generator(checkpoint)
        checkpoint = lazy_checkpoint.with_summed_embeddings(checkpoint)
        paths = checkpoint.params
        kept = {path for path in paths if huggingface.has_parameter(path, spec)}
        write = _huggingface if to == "huggingface" else _tensorflow
        new = output_folder.check(folder)
        with output_folder.atomic_folder(new, _LAST[to]) as temporary:
            written = write(checkpoint, spec, temporary)
            if generator:
                (temporary / GENERATOR).mkdir()
                names = write(*generator, temporary / GENERATOR)
                written += [f"{GENERATOR}/{name}" for name in names]
                kept |= set(filter(lazy_checkpoint.is_generator_parameter, paths))
    ignored = [*sorted(checkpoint.params.keys() - kept), *checkpoint.ignored]
    if not spec:
        return Converted("", written, [], ignored)
    missing = [
        head
        for head in spec.heads
        if not any(path.startswith(f"{head}/") for path in kept)
    ]
    heads = tuple(f"{head}/" for head in missing)
    missing += [path for path in checkpoint.missing if not path.startswith(heads)]
    return Converted(spec.name, written, missing, ignored)


def _arrays(
    params: dict[str, LazyArray], spec: ModelSpec
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield names and arrays; see `huggingface.to_arrays`."""
    params = huggingface.zeros_by_default(spec) | params
    decoder_bias, output_bias = f"{spec.family.decoder}.bias", spec.family.output_bias
    is_untied = not spec.encoder.prediction_head.tied
    arrays = huggingface.to_arrays(sorted(params), lambda p: params[p].read(), spec)
    for name, array in arrays:
        yield name, array
        # `transformers` adds the bias of the decoder, not the head's output bias, and
        # makes them equal only if the embeddings are tied.
        if is_untied and name == output_bias != decoder_bias:
            yield decoder_bias, array


def _huggingface(
    checkpoint: LazyCheckpoint, spec: ModelSpec, folder: pathlib.Path
) -> list[str]:
    prefix = spec.family.prefix if spec.purpose == BARE else ""
    params = checkpoint.params
    zeros = {path: safetensors.zeros(array.shape) for path, array in params.items()}
    shapes = {n.removeprefix(prefix): array.shape for n, array in _arrays(zeros, spec)}
    shapes = dict(sorted(shapes.items()))
    arrays = ((n.removeprefix(prefix), array) for n, array in _arrays(params, spec))
    values = {
        "architectures": [spec.name],
        **configs.to_huggingface(spec),
        # EuroBERT's default is the id of its published vocabulary.
        "mask_token_id": checkpoint.metadata.tokenizer.mask_id,
        **model_classes.labels(checkpoint.metadata),
    }
    safetensors.write(folder / huggingface_folder.ARRAYS, shapes, arrays)
    json_files.write(folder / huggingface_folder.CONFIG, values)
    tokenizer = checkpoint.metadata.tokenizer
    if spec.purpose == TAGGING:
        tokenizer = tokenizer_files.with_space_before_words(tokenizer)
    tokenizer_files.write(
        tokenizer, folder, spec.encoder, cls_is_last=spec.family.cls_is_last
    )
    task = checkpoint.metadata.config.get("task", {})
    if task.get("kind") == config_lib.EmbeddingConfig.kind:
        sentence_transformers.write(
            folder,
            task,
            spec.encoder.hidden_size,
            reads_last=spec.family.cls_is_last or spec.encoder.causal,
        )
    # A published checkpoint has no run, even if its folder is named like a step.
    source = "" if checkpoint.spec else checkpoint.source
    text = model_card.render(source, checkpoint.metadata, spec)
    (folder / "README.md").write_text(text, encoding="utf-8")
    return list(shapes)


def _tensorflow(
    checkpoint: LazyCheckpoint, spec: ModelSpec, folder: pathlib.Path
) -> list[str]:
    if spec.family is not BERT or spec.purpose not in tensorflow.PURPOSES:
        raise UserError(
            f"{checkpoint.source} corresponds to {spec.name}, which "
            "google-research/bert does not have; convert --to=huggingface"
        )
    tokenizer_files.write_wordpiece(checkpoint.metadata.tokenizer, folder)
    values = configs.to_tensorflow(spec.encoder)
    names = tensorflow.write(_arrays(checkpoint.params, spec), folder)
    json_files.write(folder / json_files.GOOGLE_CONFIG, values)
    return names


def write_native(checkpoint: LazyCheckpoint, folder: str) -> list[str]:
    """Write a native checkpoint, and return the paths of its parameters.

    The folder appears when it is complete.

    Raises:
      UserError: The folder cannot be written.
    """
    new, arrays = output_folder.check(folder, local=True), checkpoint.params
    with output_folder.atomic_folder(new, "") as temporary:
        # One at a time, because each is in memory twice while it is copied; the largest
        # first, while memory is still empty.
        params = {
            path: jax.block_until_ready(jax.device_put(arrays[path].read()))
            for path in sorted(arrays, key=lambda p: -math.prod(arrays[p].shape))
        }
        checkpoint_lib.save_parameters(
            temporary / "checkpoints", parameters.unflatten(params), checkpoint.metadata
        )
        # For run.build_corpus, if pretraining continues on new text.
        checkpoint.metadata.tokenizer.save(temporary / "tokenizer")
    return sorted(arrays)
