"""Exported folders, read by transformers if it is installed (extra `bench`)."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import other_pipelines
import published
import pytest
import recipes
import saved
from toy import assert_close

from bert_jax import config, prediction
from bert_jax.errors import UserError
from bert_jax.interop import (
    checkpoints,
    configs,
    convert,
    lazy_checkpoint,
    tokenizer_files,
)
from bert_jax.interop.families import FAMILIES
from bert_jax.interop.families import family as family_lib
from bert_jax.model import activations, parameters
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import (
    choice,
    classification,
    masked_lm,
    spans,
    tagging,
)
from bert_jax.tasks import token_rows
from bert_jax.tokenizer import pipelines
from bert_jax.tokenizer.special_tokens import SPECIAL_TOKENS
from bert_jax.training import metadata as metadata_lib

torch = pytest.importorskip("torch", reason="pip install -e '.[bench]'")
transformers = pytest.importorskip("transformers", reason="pip install -e '.[bench]'")


pytestmark = pytest.mark.filterwarnings("ignore")


def test_transformers_reads_exported_folders(tmp_path):
    """The class that config.json names returns the same outputs, and the same ids."""
    for case in published.ALL:
        out = tmp_path / case
        convert.convert(str(published.folder(case)), str(out), "huggingface")
        assert_outputs_agree(case, out)
        assert_tokens_agree(case, out)
    texts = ["aa ab", "ac ad ae af", "b", "ba bb. bc"]
    out = str(tmp_path / "classification")
    pipeline = transformers.pipeline("text-classification", out, top_k=None)
    native = prediction.load(out).classify(texts)
    for scores, classified in zip(pipeline(texts), native, strict=True):
        got = {each["label"]: each["score"] for each in scores}
        assert got == pytest.approx(classified.probabilities, abs=1e-6)
        assert max(got, key=got.get) == classified.label


def assert_outputs_agree(case, out):
    name = json.loads((out / "config.json").read_text())["architectures"][0]
    model, info = getattr(transformers, name).from_pretrained(
        out, output_loading_info=True
    )
    assert not any(info.values()), info
    outputs, expected = run(model, case), published.arrays(case, "out")
    is_text = published.arrays(case, "in")["attention_mask"]
    # RoBERTa's padding has a position of its own, which bert_jax does not store. In
    # local layers it may see no key, where implementations of attention differ.
    has_other_padding = case.startswith(("roberta", "modernbert", "ultrabert"))
    for name in outputs.keys() & expected.keys():
        got, value = outputs[name].numpy(), expected[name]
        if has_other_padding and value.shape[:2] == is_text.shape:
            got, value = got[is_text], value[is_text]
        assert_close(got, value, 1e-5)


def run(model, case):
    given = published.arrays(case, "in")
    given = {name: torch.tensor(value).long() for name, value in given.items()}
    if case.endswith("choice"):
        given = {name: value[None] for name, value in given.items()}
    with torch.no_grad():
        return model.eval()(**given)


def assert_tokens_agree(case, out):
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    native = checkpoints.read_metadata(checkpoints.find(out)).tokenizer
    ids = tokenizer(
        published.texts(), add_special_tokens=False, split_special_tokens=True
    )
    assert ids["input_ids"] == native.encode_batch(published.texts())
    assert tokenizer.mask_token_id == native.mask_id
    pair = tokenizer("aa", "ab")["input_ids"]
    rows, _ = token_rows.to_rows([("aa", "ab")], native, len(pair))
    row = rows["input_ids"][0]
    assert pair == (np.roll(row, -1) if case.startswith("xlnet") else row).tolist()
    blank = f"aa {tokenizer.mask_token} ab"
    # With bytes, the space before a blank belongs to the blank.
    spaced = blank.replace(" ", "", 1) if native.space_marker == "Ġ" else blank
    ids = tokenizer(spaced, add_special_tokens=False)["input_ids"]
    assert ids == native.encode_with_blanks(blank)


def test_the_hint_for_pickles_writes_their_arrays(tmp_path):
    source = published.write("pretraining", tmp_path / "one's [own]")
    expected = published.arrays_of(source)
    for path in source.glob("model*"):
        path.unlink()
    arrays = {name: torch.tensor(x) for name, x in expected.items()}
    for i in range(2):
        part = dict(list(arrays.items())[i::2])
        torch.save(part, source / f"pytorch_model-0000{i + 1}-of-00002.bin")
    with pytest.raises(UserError, match="is a pickle") as caught:
        checkpoints.open_published(str(source))
    exec(str(caught.value).partition("in Python: ")[2], {})
    written = published.arrays_of(source)
    assert written.keys() == expected.keys()
    assert all(np.array_equal(written[name], expected[name]) for name in written)


def test_transformers_reads_both_halves_of_an_electra(tmp_path):
    half = {
        name: lazy_checkpoint.read(str(published.folder(f"electra_{name}")))
        for name in ("discriminator", "generator")
    }
    asked = config.ReplacedTokensConfig(generator_size=0.5, generator_layers=0.5)
    read = half["discriminator"]
    encoder, tokenizer = read.metadata.encoder, read.metadata.tokenizer
    made = config.PretrainConfig(encoder=encoder, objective=asked)
    about = metadata_lib.Metadata(config.to_dict(made), encoder, tokenizer)
    params = dict(read.params)
    for path, array in half["generator"].params.items():
        if not path.startswith("encoder/embeddings/"):
            path = path.replace("mlm_head/", "generator_head/")
            params[path.replace("encoder/", "generator/")] = array
    out = str(tmp_path / "out")
    convert.export(lazy_checkpoint.LazyCheckpoint("run", about, params), out)
    for name, model in (
        ("discriminator", transformers.AutoModelForPreTraining.from_pretrained(out)),
        (
            "generator",
            transformers.AutoModelForMaskedLM.from_pretrained(
                out, subfolder="generator"
            ),
        ),
    ):
        case = f"electra_{name}"
        assert type(model).__name__.startswith("ElectraFor")
        expected = published.arrays(case, "out")["logits"]
        assert_close(run(model, case).logits.numpy(), expected, 1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out, subfolder="generator")
    assert tokenizer.mask_token_id == read.metadata.tokenizer.mask_id


@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.txt"])
def test_tokens_that_only_the_settings_list(file, tmp_path):
    """One that the vocabulary has, and a new one; not the special tokens."""
    words = [*SPECIAL_TOKENS, "[unused1]", *"[].", "the", "cat", "new", "un", "##used"]
    pipeline = pipelines.wordpiece(words, True, True)
    if file == "tokenizer.json":
        pipeline.save(str(tmp_path / file))
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    plain = dict.fromkeys(["lstrip", "normalized", "rstrip", "single_word"], False)
    listed = {"0": "[PAD]", "5": "[unused1]", str(len(words)): "[NEW]"}
    decoder = {
        i: plain | {"content": token, "special": token == "[PAD]"}
        for i, token in listed.items()
    }
    settings = {"tokenizer_class": "BertTokenizer", "added_tokens_decoder": decoder}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    text = "the [unused1] cat[NEW]. new [PAD]"
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    expected = reference(text, add_special_tokens=False, split_special_tokens=True)
    native = tokenizer_files.read(tmp_path)
    assert native.encode(text) == expected["input_ids"]
    assert {5, len(words)} < {*native.encode(text)}
    # Before transformers 4.34.
    del settings["added_tokens_decoder"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    older = {"[unused1]": 5, "[NEW]": len(words)}
    (tmp_path / "added_tokens.json").write_text(json.dumps(older))
    assert tokenizer_files.read(tmp_path).encode(text) == native.encode(text)


def test_synonyms_and_defaults_are_those_of_transformers():
    """Values that `config.json` omits have the defaults of `transformers`."""
    for family in FAMILIES:
        published_config = transformers.AutoConfig.for_model(family.model_type)
        assert family.synonyms == published_config.attribute_map
        for name, _, default in configs.fields_of(family).values():
            if default is not None:
                expected = getattr(published_config, name)
                assert default == expected, (family.model_type, name)


def test_bases_of_ultrabert_without_values_are_those_of_transformers(tmp_path):
    """The default for global layers holds without `rope_parameters` only."""
    folder = published.write("ultrabert_bare", tmp_path)
    values = json.loads((folder / "config.json").read_text())
    kinds = ("full_attention", "sliding_attention")
    unset = {kind: {"rope_type": "default"} for kind in kinds}
    for changes, expected in (
        ({"rope_parameters": unset}, (10_000, 10_000)),
        ({"rope_parameters": unset, "rope_theta": 9.0}, (10_000, 10_000)),
        ({"rope_parameters": None}, (2_560_000, 10_000)),
    ):
        (folder / "config.json").write_text(json.dumps(values | changes))
        theirs = transformers.AutoConfig.from_pretrained(folder).rope_parameters
        assert tuple(theirs[kind]["rope_theta"] for kind in kinds) == expected
        encoder = checkpoints.open_published(folder).metadata.encoder
        assert (encoder.rotary_base, encoder.local_rotary_base) == expected


def test_activations_are_those_of_transformers():
    x = np.linspace(-4, 4, 81, dtype=np.float32)
    for name, own in family_lib.ACTIVATIONS.items():
        expected = transformers.activations.ACT2FN[name](torch.tensor(x)).numpy()
        got = activations.activate(jnp.asarray(x), own)
        # The two forms of GELU differ by 4e-4.
        np.testing.assert_allclose(got, expected, atol=5e-5, err_msg=name)


@pytest.mark.parametrize("family", ["XLMRoberta", "Camembert"])
def test_folders_with_unigram_pipelines(family, tmp_path, documents):
    """The same ids, without spelt special tokens, and the same hidden states."""
    texts = [line for text in documents[:30] for line in text.splitlines()]
    trained = json.loads(other_pipelines.xlm_roberta(texts).to_str())
    pieces = [(piece, score) for piece, score in trained["model"]["vocab"]]
    tokenizer = getattr(transformers, f"{family}Tokenizer")(vocab=pieces)
    model_config = getattr(transformers, f"{family}Config")(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=60,
        type_vocab_size=1,
        pad_token_id=tokenizer.pad_token_id,
        layer_norm_eps=1e-5,
    )
    model = getattr(transformers, f"{family}ForMaskedLM")(model_config).eval()
    for parameter in model.parameters():
        parameter.data *= 4
    for each in (model, tokenizer):
        each.save_pretrained(tmp_path)
    native = tokenizer_files.read(tmp_path)
    texts += other_pipelines.hostile_texts(300)
    # Runs of one character have several segmentations of the same score.
    texts = [t for t in texts if not re.search(r"<[a-z/]+>|(.)\1{2}", t)]
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert native.encode_batch(texts) == ids
    text = "the value of the attribute"
    (got,) = prediction.load(str(tmp_path)).features([text], layers=(-1,))
    with torch.no_grad():
        rows = tokenizer(text, return_tensors="pt")
        expected = model(**rows, output_hidden_states=True).hidden_states[-1][0]
    assert_close(got.values[:, 0], expected.numpy(), 1e-5)


# ---- heads of the recipes' encoders

# The objective of each head for an encoder, and the settings of its task, by the end of
# the names of classes.
HEADS = {
    "MaskedLM": (
        lambda encoder: masked_lm.MaskedLm(
            encoder, config.MaskedLmConfig(segments="full_sentences")
        ),
        {},
    ),
    "SequenceClassification": (
        lambda encoder: classification.Classification(encoder, 3),
        {"labels": ["x", "y", "z"]},
    ),
    "TokenClassification": (
        lambda encoder: tagging.Tagging(encoder, 3),
        {"tags": ["O", "B-x", "I-x"], "scheme": "lenient"},
    ),
    "QuestionAnswering": (spans.Spans, {}),
    "MultipleChoice": (lambda encoder: choice.Choice(encoder, 2), {}),
}
# Families that are written as another, and heads that a family lacks.
WRITTEN_AS = {"camembert": "roberta", "xlm_r": "roberta", "neobert": "eurobert"}
MISSING = {
    "ultrabert": ["MultipleChoice"],
    "eurobert": ["MultipleChoice"],
    "nomicbert": ["MultipleChoice", "QuestionAnswering"],
}
# All others are marked `slow`.
FAST = ("distilbert", "TokenClassification"), ("electra", "QuestionAnswering")
LENGTH = 60
PAIRS = [
    ("The value of the expression.", "A class is an object, and a name is not."),
    ("A name.", "It is bound."),
    ("The object is the class of the value.", "It has a name."),
    ("A class", "of the module"),
]


@pytest.mark.parametrize(
    ("name", "head"),
    [
        pytest.param(name, head, marks=[pytest.mark.slow] * ((name, head) not in FAST))
        for name in recipes.FAMILIES
        for head in HEADS
    ],
)
def test_transformers_has_the_logits_of_a_head(name, head, tokenizer_of, tmp_path):
    """A recipe's encoder with random weights, for padded pairs of texts."""
    cfg, tokenizer = recipes.family(name), tokenizer_of(recipes.FAMILIES[name][1])
    cfg.encoder.vocab_size = tokenizer.vocab_size
    encoder = config.from_dict(config.PretrainConfig, cfg).encoder
    make, settings = HEADS[head]
    objective = make(encoder)
    model, params = saved.native_model(objective, settings, tokenizer, scale=0.2)
    out = tmp_path / "out"
    family = WRITTEN_AS.get(name, name)
    if head in MISSING.get(family, ()):
        with pytest.raises(UserError, match="of transformers has no class for "):
            convert.export(model, str(out))
        return
    done = convert.export(model, str(out))
    if (family, head) == ("xlnet", "MaskedLM"):
        assert done.name == "XLNetModel"
        return
    if head == "QuestionAnswering":
        family = family.replace("eurobert", "ultrabert")
    assert done.name.lower().startswith(family)
    assert not done.missing
    saved.assert_came_back(out, params)
    read = checkpoints.read_metadata(out)
    assert read.task == settings
    theirs = getattr(transformers, f"AutoModelFor{head}").from_pretrained(out)
    assert type(theirs).__name__ == done.name
    # A tagger's byte-level BPE adds a space before the first word.
    rows, _ = token_rows.to_rows(PAIRS, read.tokenizer, LENGTH)
    expected = logits_of(objective, parameters.unflatten(params), rows)
    got = logits_of_transformers(theirs, out, cls_is_last=name == "xlnet")
    if expected.ndim == 3:  # of each token
        got, expected = got[rows["attention_mask"]], expected[rows["attention_mask"]]
    assert_close(got, expected, 1e-5)


def logits_of(objective, params, rows):
    """Return the logits of texts, choices, or tokens at all positions."""
    rows = jax.tree.map(jnp.asarray, rows)
    if isinstance(objective, choice.Choice):
        rows = {name: x.reshape(2, 2, -1) for name, x in rows.items()}

    @jax.jit
    def logits(params):
        if not isinstance(objective, masked_lm.MaskedLm):
            return objective.logits(params, rows)
        given = objective, params, Inputs.of(rows)
        tokens = published.logits_at_all_positions(*given).mlm.compute()
        return tokens[..., : objective.encoder.vocab_size]

    return np.asarray(logits(params))


def logits_of_transformers(model, folder, cls_is_last):
    """Return the logits of transformers, with [CLS] first and padding last."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    padded = {"padding": "max_length", "max_length": LENGTH, "return_tensors": "pt"}
    rows = tokenizer(*map(list, zip(*PAIRS, strict=True)), **padded)
    is_text = rows["attention_mask"].bool().numpy()
    if model.config.architectures[0].endswith("MultipleChoice"):
        rows = {name: x.reshape(2, 2, -1) for name, x in rows.items()}
    with torch.no_grad():
        outputs = model.eval()(**rows)
    if "start_logits" in outputs:
        logits = torch.stack([outputs.start_logits, outputs.end_logits], -1).numpy()
    else:
        logits = outputs.logits.numpy()
    is_moved = cls_is_last and logits.ndim == 3
    return published.with_cls_first(logits, is_text) if is_moved else logits
