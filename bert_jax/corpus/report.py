"""What a person sees of a build: its progress, its warnings, and what came of it."""

import os

from bert_jax import terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import build, shards, sources


def build_with_progress(
    source: sources.Source,
    settings: build.Settings,
    tokenizer: tokenizer_lib.Tokenizer,
    output: str | os.PathLike,
    workers: int = 0,
    runner: build.Runner | None = None,
) -> shards.Corpus:
    """`build.build` with a progress bar on a terminal, and plain lines elsewhere."""
    bar = terminal.progress_bar(desc="building corpus", unit="split")

    def on_split(done, total, result):
        terminal.warn(result.problem_count, result.problems)
        bar.total = total
        bar.update(done - bar.n)
        if bar.disable and (done == total or done % max(1, total // 20) == 0):
            terminal.say(f"building corpus: {done} of {total} splits")

    try:
        return build.build(
            source,
            settings,
            tokenizer,
            output,
            runner=runner,
            workers=workers,
            on_split=on_split,
        )
    finally:
        bar.close()


def describe(corpus: shards.Corpus) -> str:
    """What a corpus holds, in a line or two."""
    train, held_out = (
        ", ".join(
            f"{corpus.count(split, what):,} {what}"
            for what in ("documents", "sentences", "tokens")
        )
        for split in shards.SPLITS
    )
    text = f"{corpus.folder}: {train}; held out: {held_out}"
    if corpus.count(shards.HELD_OUT, "documents") < 2:
        text += (
            "\nwarning: fewer than two documents are held out, so there will be no "
            "evaluation; a larger --held_out gives some"
        )
    return text
