"""NomicBERT (Nussbaum et al. 2024): BERT with rotary positions and gated layers.

`transformers` writes its arrays under other names than its classes have. The class that
was published with nomic-ai/nomic-bert-2048 has a config with GPT-2's names, and a head
without biases.
"""

from typing import Any

from bert_jax import config as config_lib
from bert_jax.interop.families import bert, family, rotary
from bert_jax.interop.json_files import JsonFile

_TASKS = bert.tasks("nomic_bert.pooler.dense")
# Names in the published class, and in `transformers`.
_OLDER = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
    "rotary_emb_base": "rope_theta",
}
_OLDER_CONSTANTS = {
    "activation_function": "swiglu",
    "prenorm": False,
    "parallel_block": False,
    "causal": False,
    "use_rms_norm": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
}


def _read_older(file: JsonFile) -> JsonFile:
    """Rename the values of the published class, whose config has `n_embd`."""
    if "n_embd" not in file.values:
        return file
    file.check_constants(_OLDER_CONSTANTS)
    given = file.values
    renamed = {new: given[name] for name, new in _OLDER.items() if name in given}
    values = {"hidden_act": "silu", **renamed, **given}
    if values.get("architectures") == ["NomicBertForPreTraining"]:
        values["architectures"] = ["NomicBertForMaskedLM"]
    return file._replace(values=values)


def _read_fields(file: JsonFile) -> dict[str, Any]:
    rotary.check_head_size(file)
    has_bias = "n_embd" not in file.values
    return {
        "rotary_base": rotary.read_base(file, 1_000.0),
        "prediction_head": config_lib.PredictionHeadConfig(
            bias=has_bias, output_bias=has_bias
        ),
    }


def _write_fields(encoder: config_lib.EncoderConfig, purpose: str) -> dict[str, Any]:
    return {"rope_parameters": rotary.write_base(encoder.rotary_base)}


NOMICBERT = family.Family(
    model_type="nomic_bert",
    title="NomicBERT",
    prefix="nomic_bert.",
    older_prefix="bert.",
    encoder={
        "encoder/embeddings/token_embedding": (
            "nomic_bert.embeddings.word_embeddings.weight"
        ),
        "encoder/embeddings/segment_embedding": (
            "nomic_bert.embeddings.token_type_embeddings.weight"
        ),
        "encoder/embeddings/layer_norm": "nomic_bert.emb_ln",
    },
    layer_prefix="nomic_bert.encoder.layers.{}",
    layer={
        **{f"attention/{name}": "attn.Wqkv" for name in family.INPUTS},
        "attention/output": "attn.out_proj",
        "attention_layer_norm": "norm1",
        "intermediate": "mlp.fc11",
        "gate": "mlp.fc12",
        "output": "mlp.fc2",
        "output_layer_norm": "norm2",
    },
    decoder="cls.predictions.decoder",
    class_prefix="NomicBert",
    classes={
        family.CLASSIFICATION: _TASKS[family.CLASSIFICATION],
        family.TAGGING: _TASKS[family.TAGGING],
        family.MASKED_LM: bert.MASKED_LM
        | {"mlm_head/layer_norm": "cls.predictions.transform.layer_norm"},
        family.BARE: {},
    },
    exports=lambda encoder, purpose, tokenizer: (
        encoder.positions == "rotary" and encoder.norm_placement == "post"
    ),
    fields={
        "dropout_rate": ("hidden_dropout_prob", float, 0.0),
        "attention_dropout_rate": ("attention_probs_dropout_prob", float, 0.0),
    },
    settings={"positions": "rotary", "feed_forward": "gated", "linear_bias": False},
    read_older=_read_older,
    read_fields=_read_fields,
    write_fields=_write_fields,
)
