r"""Table of docs/what_to_expect.md: scores on a corpus without context.

python benchmarks/unigram_baseline.py CORPUS ...

For each corpus: the unigram entropy of its held-out text, its cross entropy
under the frequencies of the training text (one added to each count), and loss and
accuracy of masked tokens without context, as runs report them.
"""

import numpy as np
import program_flags

from bert_jax import config as config_lib
from bert_jax.corpus import shards
from bert_jax.data import chunks
from bert_jax.errors import UserError
from bert_jax.objectives import unigram_baseline
from bert_jax.run import exit_status

_HEAD = """\
| held-out text | V | tokens | unigram entropy | same, frequencies of the training \
text | masked token without context | most frequent token | accuracy without context |
|---|---:|---:|---:|---:|---:|---:|---:|"""


def row(folder: str) -> str:
    """Return a row of the table."""
    corpus = shards.open_corpus(folder)
    size = corpus.tokenizer.vocab_size
    train, held_out = (
        chunks.count_tokens(chunks.load_tokens(corpus, split), size)
        for split in shards.SPLITS
    )
    if not held_out.sum():
        raise UserError(
            f"{folder} has no held-out text; build it with run.build_corpus "
            "--held_out=0.01"
        )
    p, q = held_out / held_out.sum(), (train + 1) / (train + 1).sum()
    loss, accuracy = unigram_baseline.masked_token(p, config_lib.MaskingConfig())
    cells = [
        folder,
        f"{size:,}",
        f"{held_out.sum():,}",
        f"{unigram_baseline.entropy(p):.2f}",
        f"{-(p * np.log(q)).sum():.2f}",
        f"{loss:.2f}",
        f"{p.max():.1%}",
        f"{accuracy:.1%}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the head of the table, and a row for each corpus."""
    parser = program_flags.make_parser(__doc__)
    parser.add_argument("corpora", nargs="+", metavar="CORPUS")
    corpora = parser.parse_args().corpora
    print(_HEAD)
    for given in corpora:
        print(row(given))


if __name__ == "__main__":
    with exit_status.reported_errors():
        main()
