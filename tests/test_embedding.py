"""Vectors of texts: the loss, the search, files, whole runs, and exported folders."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import ROOT, assert_refused, call, succeed
from reference_logits import LENGTH, TOKENIZER, logits_of, words
from saved import save
from toy import TINY, batch_of, loss_and_gradient, params_of

from bert_jax import config, prediction, storage
from bert_jax.errors import UserError
from bert_jax.interop import convert, sentence_transformers
from bert_jax.model import heads
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import embedding as objectives_embedding
from bert_jax.objectives import metric_sums
from bert_jax.tasks import embedding
from bert_jax.training import optimizer, programs, sharding
from bert_jax.training.run_description import Phase, Run

OBJECTIVE = objectives_embedding.Embedding(TINY, 3, "mean", 0.1)


def restated_vectors(hidden, mask, pool):
    """Return unit vectors of rows of hidden states."""
    pooled = hidden[:, 0]
    if pool == "mean":
        pooled = np.stack(
            [h[m].mean(axis=0) for h, m in zip(hidden, mask, strict=True)]
        )
    return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)


# ---- the loss


def small_batch():
    """Return a batch with repeated texts, a missing negative, and a row of weight 0."""
    batch = batch_of(OBJECTIVE, rows=6)
    texts = np.array(
        [[0, 1, 2], [3, 4, -1], [5, 1, 0], [6, 6, 7], [3, 8, 4], [3, 10, 4]], np.int32
    )
    batch["texts"] = jnp.asarray(texts)
    batch["weights"] = jnp.asarray([1, 1, 1, 1, 0, 1], jnp.float32)
    mask = np.array(batch["attention_mask"])
    mask[:] = mask[:, :1]
    mask[texts < 0] = False
    batch["attention_mask"] = jnp.asarray(mask)
    return batch


@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_the_loss_equals_its_restatement(pool):
    objective = dataclasses.replace(OBJECTIVE, pool=pool)
    params, batch = params_of(objective.init), small_batch()
    texts, weights = np.asarray(batch["texts"]), np.asarray(batch["weights"])
    flat = {k: x.reshape(18, -1) for k, x in batch.items() if x.ndim == 3}
    encode = jax.jit(heads.make_encoder(TINY).apply)
    hidden = encode({"params": params["encoder"]}, Inputs.of(flat)).hidden
    mask = np.array(flat["attention_mask"])
    mask[~mask.any(axis=1), 0] = True  # any vector, which nothing compares with
    vectors = restated_vectors(np.asarray(hidden, np.float64), mask, pool)
    vectors = vectors.reshape(6, 3, -1)
    losses, hits = [], []
    for i in np.flatnonzero(weights):
        own = vectors[i, 0] @ vectors[i, 1] / 0.1
        belonging = texts[texts[:, 0] == texts[i, 0], 1]
        others = [
            vectors[i, 0] @ vectors[j, c] / 0.1
            for j in np.flatnonzero(weights)
            for c in (1, 2)
            if texts[j, c] not in (-1, texts[i, 0], *belonging)
        ]
        losses.append(np.log(np.exp([own, *others]).sum()) - own)
        hits.append(own > max(others))
    (loss, sums), gradient = loss_and_gradient(objective, params, batch)
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert metric_sums.ratio(sums["accuracy"]) == pytest.approx(np.mean(hits))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_scores_and_files(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("text_a\ttext_b\nab\tac\nad\tae\naf\tag\n")
    files = {"train": str(path), "eval": str(path)}
    task = embedding.Embedding(config.EmbeddingConfig(**files), TOKENIZER)
    similarities = np.array([[0.5, 0.5], [0.25, 0.75], [0.125, 1]])
    found = embedding.Search(np.array([1, 10, 11]), np.array([1, 1, 2]), similarities)
    assert task.scores("eval", found) == {
        "mrr": pytest.approx((1 + 1 / 10 + 1 / 11) / 3),
        "recall_at_1": pytest.approx(1 / 3),
        "recall_at_10": pytest.approx(2 / 3),
    }
    task.write(storage.path(tmp_path), "eval", found)
    lines = (tmp_path / "predictions.jsonl").read_text().splitlines()
    assert json.loads(lines[2]) == {
        "line": 4,
        "rank": 11,
        "similarity": 0.125,
        "nearest": "ad",
        "nearest_similarity": 1,
    }


def test_texts_on_other_devices_are_negatives():
    """Replicas sum gradients of shared layers themselves, but not here."""
    encoder = dataclasses.replace(
        TINY, num_layer_groups=1, dropout_rate=0.0, attention_dropout_rate=0.0
    )
    objective = dataclasses.replace(OBJECTIVE, encoder=encoder)
    batch = batch_of(objective, rows=8) | {"texts": jnp.arange(24).reshape(8, 3)}
    length = batch["input_ids"].shape[-1]
    asked = config.FinetuneConfig(task=config.EmbeddingConfig(), batch_size=8)
    phase = Phase("fine-tuning", objective, 10, (length,), 8, 1, open_data=None)
    losses = []
    for count in (1, 4):
        mesh = sharding.make_mesh(config.MeshConfig(), jax.devices()[:count])
        run = Run(
            schedule=optimizer.make_schedule(asked.optimizer, 10),
            phases=(phase,),
            config=asked,
            mesh=mesh,
            encoders={"encoder": encoder},
        )
        state = sharding.initialise(run.init, run.state_shapes, jax.random.key(0))
        lowered = programs.lower_train_step(
            run, phase, state, run.batch_shapes(phase, length)
        )
        on_devices = sharding.to_devices(mesh, jax.device_get(batch), 8)
        signals = programs.HostSignals(0.0, 0.0).to_devices(mesh)
        seed = programs.seed_array(run)
        _, report = lowered.compile()(state, on_devices, signals, seed, {})
        losses.append([report.loss, report.grad_norm])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [{"micro_batches": 2}, {"mesh": {"gradient_sum": "bfloat16"}}, {"frozen": True}],
)
def test_parts_of_a_batch_and_frozen_encoders_are_refused(changes):
    cfg = config.to_configdict(config.FinetuneConfig(task=config.EmbeddingConfig()))
    cfg.update(changes)
    with pytest.raises(UserError, match="does not go with task.kind=embedding; "):
        config.from_dict(config.FinetuneConfig, cfg)


# ---- the search


def test_ranks_equal_a_search_by_hand(monkeypatch):
    """The first text is left out, and so are other texts that belong to it."""
    monkeypatch.setattr(embedding, "_CHUNK", 7)
    rng = np.random.default_rng(0)
    texts = rng.integers(0, 25, (20, 3)).astype(np.int32)
    texts[::3, 2] = -1
    of_text = rng.normal(size=(25, 4)).astype(np.float32)
    of_text[20:] = of_text[19]  # equal vectors of different texts
    of_text /= np.linalg.norm(of_text, axis=1, keepdims=True)
    found = embedding.search(of_text[texts], texts)
    for i, (a, b, _) in enumerate(texts.tolist()):
        own = {y for x, y in texts[:, :2].tolist() if x == a} | {a}
        candidates = {*texts[:, 1:].ravel().tolist()} - {-1} - (own - {b})
        scores = {t: float(of_text[a] @ of_text[t]) for t in candidates}
        nearer = [t for t in candidates if scores[t] >= scores[b] - 1e-6]
        assert found.ranks[i] == len(nearer)
        best = max(scores.values())
        assert scores[found.nearest[i]] == pytest.approx(best, abs=1e-6)
        expected = [scores[b], best]
        assert found.similarities[i].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("size", [32, 312, 768])
def test_equal_vectors_of_all_texts_find_nothing(size):
    """Some columns of a product are rounded in another way."""
    vector = np.random.default_rng(0).normal(size=size).astype(np.float32)
    vector /= np.linalg.norm(vector)
    for rows in range(2, 40):
        texts = np.arange(2 * rows, dtype=np.int32).reshape(rows, 2)
        found = embedding.search(np.broadcast_to(vector, (rows, 2, size)), texts)
        assert found.ranks.tolist() == [rows] * rows


# ---- files


def test_columns_may_have_other_names(tmp_path):
    path = tmp_path / "pairs.jsonl"
    lines = [
        {"anchor": "a b", "positive": "c", "wrong": None, "score": 3},
        {"anchor": "d", "positive": "e", "wrong": " f ", "score": 1},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    names = {"text_a": "anchor", "text_b": "positive"}
    read = embedding.read(path, config.EmbeddingConfig(**names, negative="wrong"))
    assert read == [
        embedding.Example(1, "a b", "c", ""),
        embedding.Example(2, "d", "e", "f"),
    ]
    read = embedding.read(path, config.EmbeddingConfig(**names))
    assert [example.negative for example in read] == ["", ""]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text_a\ttext_b\n", "pairs.tsv has no examples"),
        (
            "text\ttext_b\na\tb\n",
            "no column 'text_a'; .* names as --config.task.text_a",
        ),
        ("text_a\ttext_b\na\tb\na\t \n", "pairs.tsv, line 3: text_b is empty"),
    ],
)
def test_invalid_files_are_refused(text, message, tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        embedding.read(path, config.EmbeddingConfig())


def test_a_test_set_alone_cannot_have_negatives(tmp_path):
    for name, header, row in (
        ("pairs", "text_a\ttext_b", "a\tb"),
        ("test", "text_a\ttext_b\tnegative", "a\tb\tc"),
    ):
        (tmp_path / f"{name}.tsv").write_text(f"{header}\n{row}\n")
    pairs, test = (str(tmp_path / f"{name}.tsv") for name in ("pairs", "test"))
    task = config.EmbeddingConfig(train=pairs, eval=pairs, test=test)
    with pytest.raises(UserError, match="test.tsv has negatives, but .*pairs.tsv and"):
        embedding.Embedding(task, TOKENIZER)


def test_rows_have_a_number_for_each_different_text():
    """Texts that lower-casing or truncation make equal are not different."""
    examples = [
        embedding.Example(2, "ab ac", "ad", ""),
        embedding.Example(3, "AD", words(20), "AB  ac"),
        embedding.Example(4, "ae", words(30), ""),
    ]
    texts, rows, truncated = embedding.make_rows(examples, TOKENIZER, 8, 3)
    assert texts == ["ab ac", "ad", words(20), "ae"]
    assert rows["texts"].tolist() == [[0, 1, -1], [1, 2, 0], [3, 2, -1]]
    counts = rows["attention_mask"].sum(axis=2)
    assert counts.tolist() == [[4, 3, 0], [3, 8, 4], [3, 8, 0]]
    assert truncated == 2


# ---- models and runs


@pytest.fixture(scope="module", params=["mean", "cls"])
def trained(request, tmp_path_factory):
    """Return a pooling, the workdir of an embedder, its parameters, and some texts."""
    pool, folder = request.param, tmp_path_factory.mktemp("embedder")
    objective = objectives_embedding.Embedding(TINY, 2, pool, 0.05)
    task = config.EmbeddingConfig(length=12, pool=pool)
    run = config.FinetuneConfig(task=task)
    params = save(folder, objective, TOKENIZER, run=run)
    return pool, folder, params, ["ab ac", "", words(11), "ad"]


def test_vectors_match_the_model(trained):
    pool, folder, params, texts = trained
    model = prediction.load(str(folder))
    rows = [text.split()[:10] for text in texts]
    hidden = logits_of(
        heads.make_encoder(TINY),
        params["encoder"],
        [(row, []) for row in rows],
        method=lambda encoder, inputs: encoder(inputs).hidden,
    )
    mask = np.arange(LENGTH) < np.array([[len(row) + 2] for row in rows])
    expected = restated_vectors(hidden, mask, pool)
    np.testing.assert_allclose(model.embed(texts), expected, atol=2e-6)
    assert model.embed([]).shape == (0, TINY.hidden_size)


def test_an_exported_folder_has_the_pooling(trained, tmp_path):
    pool, folder, _, texts = trained
    done = convert.convert(str(folder), str(tmp_path / "out"))
    assert done.name == "BertModel" and not done.ignored
    modules = json.loads((tmp_path / "out/modules.json").read_text())
    assert [each["path"] for each in modules] == ["", "1_Pooling", "2_Normalize"]
    pooling = json.loads((tmp_path / "out/1_Pooling/config.json").read_text())
    modes = [mode for mode, is_on in pooling.items() if is_on is True]
    assert modes == [f"pooling_mode_{pool}_token" + "s" * (pool == "mean")]
    card = (tmp_path / "out/README.md").read_text()
    assert 'SentenceTransformer("FOLDER").encode(' in card
    with pytest.raises(UserError, match="use a workdir of run.finetune_embedder"):
        prediction.load(str(tmp_path / "out")).embed(texts)
    again = convert.convert(str(tmp_path / "out"), str(tmp_path / "again"), "native")
    names = ["1_Pooling", "2_Normalize"]
    assert again.ignored == [f"{n} (a module of sentence_transformers)" for n in names]


def test_the_pooled_token_may_be_the_last(tmp_path):
    """As in XLNet, and from left to right."""
    task = {"pool": "cls", "length": 8}
    sentence_transformers.write(tmp_path, task, 16, reads_last=True)
    pooling = json.loads((tmp_path / "1_Pooling/config.json").read_text())
    assert [mode for mode, is_on in pooling.items() if is_on is True] == [
        "pooling_mode_lasttoken"
    ]


def test_sentence_transformers_has_the_same_vectors(trained, tmp_path):
    library = pytest.importorskip(
        "sentence_transformers", reason="pip install -e '.[bench]'"
    )
    _, folder, _, texts = trained
    convert.convert(str(folder), str(tmp_path / "out"))
    got = library.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts)
    expected = prediction.load(str(folder)).embed(texts)
    np.testing.assert_allclose(got, expected, atol=2e-6)


@pytest.mark.runs
def test_pairs_are_learned_from_the_command_line(pretrained, tmp_path):
    """Texts that belong together have two words in common."""
    rng = np.random.default_rng(0)
    keys = ["class", "statement", "object", "value", "name", "list", "key", "type"]
    other = ["the", "a", "of", "to", "in", "is"]

    def pair(i):
        key = [keys[i % 8], keys[(i // 8 + 1 + i % 8) % 8]]
        texts = (" ".join(rng.permutation([*key, *rng.choice(other, 4)])) for _ in "ab")
        return "\t".join(texts) + "\n"

    flags = [f"--config={ROOT}/configs/embedder.py:smoke", "--config.epochs=4"]
    flags += [f"--config.init_from={pretrained}", f"--workdir={tmp_path / 'run'}"]
    flags += ["--config.batch_size=16", "--config.optimizer.learning_rate=2e-3"]
    flags += ["--config.loop.eval_every=0", "--config.loop.checkpoint_every=0"]
    flags.append("--config.random_init=True")
    for name, count in (("train", 320), ("eval", 24)):
        lines = [pair(i) for i in range(count)]
        (tmp_path / f"{name}.tsv").write_text("text_a\ttext_b\n" + "".join(lines))
        flags.append(f"--config.task.{name}={tmp_path / name}.tsv")
    done = call("finetune_embedder", *flags, "--config.batch_size=1")
    assert_refused(done, "batch_size=1 gives a pair no other text to be compared with")
    done = succeed("finetune_embedder", *flags)
    assert "\nexamples: 24, train_examples: 320\n" in done.stderr
    results = json.loads(done.stdout)
    assert results["init_from"] == "random"
    assert results["recall_at_1"] > 0.5
    written = [
        json.loads(line)
        for line in (tmp_path / "run/predictions.jsonl").read_text().splitlines()
    ]
    ranks = np.array([line["rank"] for line in written])
    assert np.mean(1 / ranks) == pytest.approx(results["mrr"])
    rows = (tmp_path / "eval.tsv").read_text().splitlines()[1:]
    pairs = [row.split("\t") for row in rows]
    model = prediction.load(str(tmp_path / "run"))
    first, second = (model.embed([pair[i] for pair in pairs]) for i in range(2))
    for line, similarity in zip(written, (first * second).sum(axis=1), strict=True):
        assert line["similarity"] == pytest.approx(similarity, abs=1e-5)
