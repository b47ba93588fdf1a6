"""What goes out, read by transformers itself, where it is installed (extra `bench`)."""

import base64
import json
import re

import numpy as np
import published
import pytest
import sentencepiece
from toy import assert_close

from bert_jax import config, prediction
from bert_jax.interop import checkpoints, convert, vocabularies
from bert_jax.objectives import replaced_tokens
from bert_jax.tasks import texts as task_texts
from bert_jax.training import checkpoint
from bert_jax.training import metadata as metadata_lib

torch = pytest.importorskip("torch", reason="pip install -e '.[bench]'")
transformers = pytest.importorskip("transformers", reason="pip install -e '.[bench]'")


@pytest.mark.filterwarnings("ignore")  # of theirs
@pytest.mark.parametrize("case", published.ALL)
def test_transformers_reads_what_goes_out(case, tmp_path):
    """By the class that config.json names: the outputs that went in, and the ids."""
    source, out = published.write(case, tmp_path / "in"), str(tmp_path / "out")
    convert.convert(str(source), out, "huggingface")
    name = json.loads((tmp_path / "out/config.json").read_text())["architectures"][0]
    model, info = getattr(transformers, name).from_pretrained(
        out, output_loading_info=True
    )
    assert not any(info.values()), info
    given = published.arrays(case, "in")
    given = {name: torch.tensor(value).long() for name, value in given.items()}
    if case.endswith("choice"):
        given = {name: value[None] for name, value in given.items()}
    with torch.no_grad():
        outputs = model.eval()(**given)
    expected = published.arrays(case, "out")
    is_text = published.arrays(case, "in")["attention_mask"]
    for name in outputs.keys() & expected.keys():
        got, value = outputs[name].numpy(), expected[name]
        # RoBERTa's padding has a position of its own, which bert_jax does not store. In
        # ModernBERT it may see no key, where implementations of attention differ.
        has_other_padding = case in (*published.WITH_BYTES, *published.MODERNBERT)
        if has_other_padding and value.shape[:2] == is_text.shape:
            got, value = got[is_text], value[is_text]
        assert_close(got, value, 1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    ours = checkpoints.read_metadata(checkpoints.find(out)).tokenizer
    ids = tokenizer(
        published.texts(), add_special_tokens=False, split_special_tokens=True
    )
    assert ids["input_ids"] == ours.encode_batch(published.texts())
    assert tokenizer.mask_token_id == ours.mask_id
    pair = tokenizer("aa", "ab")["input_ids"]
    rows, _ = task_texts.to_rows([("aa", "ab")], ours, len(pair))
    row = rows["input_ids"][0]
    assert pair == (np.roll(row, -1) if case in published.XLNET else row).tolist()
    blank = f"aa {tokenizer.mask_token} ab"
    ids = tokenizer(blank, add_special_tokens=False)["input_ids"]
    assert ids == ours.encode_with_blanks(blank)


@pytest.mark.filterwarnings("ignore")
def test_a_pipeline_classifies_as_we_do(tmp_path):
    source, out = published.write("classification", tmp_path / "in"), tmp_path / "out"
    convert.convert(str(source), str(out), "huggingface")
    texts = ["aa ab", "ac ad ae af", "b", "ba bb. bc"]
    pipeline = transformers.pipeline("text-classification", str(out), top_k=None)
    for theirs, ours in zip(
        pipeline(texts), prediction.load(out).classify(texts), strict=True
    ):
        got = {each["label"]: each["score"] for each in theirs}
        assert got.keys() == ours.probabilities.keys()
        for label, probability in ours.probabilities.items():
            assert got[label] == pytest.approx(probability, abs=1e-6)
        assert max(got, key=got.get) == ours.label


@pytest.mark.filterwarnings("ignore")
def test_both_halves_of_electra(tmp_path):
    """A checkpoint of ours goes out as two models, one in a folder of the other."""
    folders = {
        half: published.write(f"electra_{half}", tmp_path / half)
        for half in ("discriminator", "generator")
    }
    read = checkpoints.published(folders["discriminator"])
    params = published.params(folders["discriminator"])
    other = published.params(folders["generator"])
    del other["encoder"]["embeddings"]
    params |= {"generator": other["encoder"], "generator_head": other["mlm_head"]}
    encoder = read.metadata.encoder
    asked = config.ReplacedTokensConfig(generator_size=0.5, generator_layers=0.5)
    run = config.PretrainConfig(encoder=encoder, objective=asked)
    objective = replaced_tokens.ReplacedTokens(encoder, asked)
    about = metadata_lib.of_run(run, objective, read.metadata.tokenizer)
    checkpoint.save_parameters(tmp_path / "run/checkpoints", params, about)
    out = str(tmp_path / "out")
    convert.convert(str(tmp_path / "run"), out, "huggingface")
    for half, made in (
        ("discriminator", transformers.AutoModelForPreTraining.from_pretrained(out)),
        (
            "generator",
            transformers.AutoModelForMaskedLM.from_pretrained(
                out, subfolder="generator"
            ),
        ),
    ):
        assert type(made).__name__.startswith("ElectraFor")
        given = published.arrays(f"electra_{half}", "in")
        given = {name: torch.tensor(value).long() for name, value in given.items()}
        with torch.no_grad():
            logits = made.eval()(**given).logits
        expected = published.arrays(f"electra_{half}", "out")["logits"]
        assert_close(logits.numpy(), expected, 1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out, subfolder="generator")
    assert tokenizer.mask_token_id == read.metadata.tokenizer.mask_id


@pytest.mark.filterwarnings("ignore")
def test_tokens_of_an_albert(tmp_path, documents):
    """Ids that its own tokenizer gives, made of what is in the file of SentencePiece.

    `from_pretrained` itself needs a newer protobuf than TensorFlow bears.
    """
    folder = published.sentencepiece_of_albert(tmp_path / "model", documents[:20])
    ours = vocabularies.read(folder)
    model = sentencepiece.SentencePieceProcessor(str(folder / "spiece.model"))
    pieces = [(model.id_to_piece(i), model.get_score(i)) for i in range(len(model))]
    vocabularies.write(ours, folder, config.EncoderConfig())
    written = json.loads((folder / "tokenizer.json").read_text())["normalizer"]
    (rules,) = (x for x in written["normalizers"] if x["type"] == "Precompiled")
    theirs = transformers.AlbertTokenizer(
        vocab=pieces,
        _spm_precompiled_charsmap=base64.b64decode(rules["precompiled_charsmap"]),
    )
    # Runs of one character have several segmentations of the same score.
    lines = {line for text in documents[:40] for line in text.splitlines()}
    texts = [line for line in sorted(lines) if not re.search(r"``|''|(.)\1{2}", line)]
    assert len(texts) > 500
    ids = theirs(texts, add_special_tokens=False)["input_ids"]
    assert ids == ours.encode_batch(texts)
