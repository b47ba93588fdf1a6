"""Table of docs/data.md: one document in a batch of each kind.

python benchmarks/show_batches.py
"""

import itertools
import pathlib
import runpy
import tempfile

import numpy as np
import program_flags

from bert_jax import config as config_lib
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import build, shards, sources
from bert_jax.data import batches as batches_lib
from bert_jax.tokenizer import pipelines

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
# One for each kind of batch.
RECIPES = (
    "bert_base",
    "bert_ablations:no_nsp",
    "bert_ablations:left_to_right",
    "bert_ablations:whole_words",
    "bert_ablations:ngrams",
    "bert_ablations:sentence_order",
    "bert_ablations:full_sentences",
    "bert_ablations:doc_sentences",
    "bert_ablations:fairseq",
    "bert_ablations:mask_40",
    "bert_ablations:mask_falling",
    "bert_ablations:packed",
    "xlnet:base",
)
# Documents have a blank line between them.
TEXT = """\
The clockmaker stopped. Nobody listened again.

Rain was falling. The boats stayed.
"""
WORDS = """\
the clock ##maker stop ##ped . no ##body listen ##ed again rain was fall ##ing boat ##s
stay
"""
VOCABULARY = (*tokenizer_lib.SPECIAL_TOKENS, *WORDS.split())
LENGTH = 24
# Where two examples fit into a row.
PACKED_LENGTH = 32
SEED = 9


def make_corpus(folder: pathlib.Path) -> shards.Corpus:
    (folder / "text.txt").write_text(TEXT)
    tokenizer = tokenizer_lib.make(pipelines.wordpiece(VOCABULARY, True, True))
    source = sources.Source(str(folder / "text.txt"), "text")
    settings = build.Settings(held_out=0.0)
    return build.build(source, settings, tokenizer, folder / "corpus", workers=1)


def batches(corpora: list[shards.Corpus], recipe: str, *, seed: int = 0, **phase):
    """Return the batches of a recipe's first phase, with fields of it changed."""
    name, _, variant = recipe.partition(":")
    cfg = runpy.run_path(str(CONFIGS / f"{name}.py"))["get_config"](variant)
    cfg.seed = seed
    cfg.phases[0].update(phase)
    config = config_lib.from_dict(config_lib.PretrainConfig, cfg)
    return batches_lib.PretrainingBatches(corpora, config, 0)


def row_of(corpus: shards.Corpus, recipe: str) -> dict[str, np.ndarray]:
    """Return the first document's row in the first batch of a recipe."""
    length = PACKED_LENGTH if recipe.endswith(":packed") else LENGTH
    made = batches([corpus], recipe, seed=SEED, length=length, batch_size=2)
    row = [" document 0 " in n for n in made.row_names(0)].index(True)
    return {name: values[row] for name, values in made.batch(0).items()}


def counted(values) -> str:
    """Format runs of equal values: 0, 0, 0, 1 gives "3 x 0, 1 x 1"."""
    runs = [(value, len(list(run))) for value, run in itertools.groupby(values)]
    return ", ".join(f"{length} x {value}" for value, length in runs)


def cells(row: dict[str, np.ndarray]) -> list[str]:
    """Format the tokens, predictions, segments and labels of a row."""
    ids, length = row["input_ids"], int(row["attention_mask"].sum())
    tokens = [VOCABULARY[i] for i in ids[:length]]
    text = f"`{' '.join(tokens)}`"
    if length < len(ids):
        text += f" and {len(ids) - length} `[PAD]`"
    kind = "mlm" if "mlm_labels" in row else "target"
    if f"{kind}_labels" in row:
        used = row[f"{kind}_weights"] > 0
        labels = [VOCABULARY[i] for i in row[f"{kind}_labels"][used]]
        positions = row[f"{kind}_positions"][used]
        predicted = ", ".join(
            f"{position}: `{label}`"
            + (f" (place {row['ranks'][position]})" if "ranks" in row else "")
            for position, label in zip(positions, labels, strict=True)
        )
    else:
        predicted = f"0 to {length - 2}: `{' '.join(tokens[1:])}`"
    segments = counted(row["segment_ids"].tolist()) if "segment_ids" in row else ""
    if "documents" in row:
        segments += f"; `documents` {counted(row['documents'].tolist())}"
    label = ""
    for name in ("nsp", "sop"):
        if f"{name}_labels" in row:
            used = np.atleast_1d(row[f"{name}_weights"] > 0)
            labels = np.atleast_1d(row[f"{name}_labels"])[used]
            label = f"`{name}_labels` {', '.join(map(str, labels))}"
    return [text, predicted, segments, label]


def table() -> str:
    """Return the table in Markdown."""
    lines = [
        "| recipe | `input_ids` | predicted, by position | `segment_ids` | label |",
        "|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_corpus(pathlib.Path(folder))
        for recipe in RECIPES:
            row = cells(row_of(corpus, recipe))
            lines.append(f"| `{recipe}` | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    program_flags.make_parser(__doc__).parse_args()
    print(table(), end="")
