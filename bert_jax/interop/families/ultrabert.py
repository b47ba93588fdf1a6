"""UltraBERT (2026): EuroBERT's layers, most of them local, and a head of two layers.

`transformers` writes its arrays under other names than its classes have.
"""

from typing import Any

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.interop.families import eurobert, family, rotary
from bert_jax.interop.json_files import JsonFile

_POOLING = {"cls": "cls", "mean": "mean"}


def _read_fields(file: JsonFile) -> dict[str, Any]:
    if "attention_windows" in file.values:
        raise UserError(
            f"{file.path}: attention_windows is of an older format; save the model "
            "with transformers 5.23"
        )
    base = 2_560_000.0
    if file.values.get("rope_parameters"):
        # Then `transformers` ignores `rope_theta`, and has one default for all layers.
        base = 10_000.0
        values = {n: v for n, v in file.values.items() if n != "rope_theta"}
        file = file._replace(values=values)
    return {
        **eurobert.read_layers(file),
        **rotary.read_local_layers(file, (3, 2), 128),
        "rotary_base": rotary.read_base(file, base, rotary.GLOBAL),
        "prediction_head": config_lib.PredictionHeadConfig(
            num_layers=2,
            width=file.value("prediction_head_size", int, 768),
            activation="gelu_tanh",
            norm=False,
            bias=False,
            output_bias=False,
            tied=False,
        ),
        # A classifier reads the hidden states themselves.
        "pooler": config_lib.PoolerConfig(
            pooling=file.choice("classifier_pooling", _POOLING, "cls"), activation=""
        ),
    }


def _write_fields(encoder: config_lib.EncoderConfig, purpose: str) -> dict[str, Any]:
    head = encoder.prediction_head
    return eurobert.write_layers(encoder) | {
        **rotary.write_layers(encoder),
        "sliding_window": encoder.attention_window,
        "prediction_head_size": head.width or encoder.embedding_columns,
        "classifier_pooling": _POOLING.get(encoder.pooler.pooling, "cls"),
    }


ULTRABERT = family.Family(
    model_type="ultrabert",
    title="UltraBERT",
    prefix="ultrabert.",
    encoder=eurobert.encoder("ultrabert."),
    layer_prefix="ultrabert.layers.{}",
    layer=eurobert.LAYER,
    decoder="cls",
    class_prefix="Ultrabert",
    classes={
        family.CLASSIFICATION: {"classifier": "classifier"},
        family.TAGGING: {"tagger": "classifier"},
        family.ANSWERING: {"span_classifier": "qa_outputs"},
        family.MASKED_LM: {
            "mlm_head/inner_transform": "head.linear1",
            "mlm_head/transform": "head.linear2",
            "mlm_head/output_embedding": "cls.weight",
        },
        family.BARE: {},
    },
    exports=lambda encoder, purpose, tokenizer: (
        encoder.positions == "rotary" and encoder.norm == "rms"
    ),
    fields=eurobert.FIELDS | {"layer_norm_epsilon": ("rms_norm_eps", float, 1e-6)},
    settings=eurobert.SETTINGS,
    read_fields=_read_fields,
    write_fields=_write_fields,
    min_segments=0,
    lower_case=False,
)
