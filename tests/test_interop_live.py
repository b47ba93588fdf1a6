"""What goes out, read by transformers itself, where it is installed (extra `bench`)."""

import json

import published
import pytest
from toy import assert_close

from bert_jax import prediction
from bert_jax.interop import convert, sources

torch = pytest.importorskip("torch", reason="pip install -e '.[bench]'")
transformers = pytest.importorskip("transformers", reason="pip install -e '.[bench]'")


@pytest.mark.filterwarnings("ignore")  # of theirs
@pytest.mark.parametrize("case", (*published.CASES, *published.WITH_WORDPIECE))
def test_transformers_reads_what_goes_out(case, tmp_path):
    """By the class that config.json names: the outputs that went in, and the ids."""
    source, out = published.write(case, tmp_path / "in"), str(tmp_path / "out")
    convert.convert(str(source), out, "huggingface")
    name = json.loads((tmp_path / "out/config.json").read_text())["architectures"][0]
    model = getattr(transformers, name).from_pretrained(out)
    given = published.arrays(case, "in")
    given = {name: torch.tensor(value).long() for name, value in given.items()}
    if case == "choice":
        given = {name: value[None] for name, value in given.items()}
    with torch.no_grad():
        outputs = model.eval()(**given)
    expected = published.arrays(case, "out")
    for name in outputs.keys() & expected.keys():
        assert_close(outputs[name].numpy(), expected[name], 1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    ours = sources.read_metadata(sources.find(out)).tokenizer
    ids = tokenizer(
        published.texts(), add_special_tokens=False, split_special_tokens=True
    )
    assert ids["input_ids"] == ours.encode_batch(published.texts())
    assert tokenizer.mask_token_id == ours.mask_id
    assert tokenizer("aa", "ab")["input_ids"][0] == ours.cls_id


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
