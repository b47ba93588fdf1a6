"""Progress, warnings and summary of a build, for people."""

import os

from bert_jax import terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import build, shards, sources, splits

# Fraction of unknown tokens; with a vocabulary that fits the text it is far lower.
_MANY_UNKNOWN = 0.03


def build_with_progress(
    source: sources.Source,
    settings: build.Settings,
    tokenizer: tokenizer_lib.Tokenizer,
    output: str | os.PathLike,
    workers: int = 0,
    runner: build.Runner | None = None,
) -> shards.Corpus:
    """`build.build` with a progress bar, or with plain lines away from a terminal."""
    with terminal.progress_bar(desc="building corpus", unit="split") as bar:
        hints: dict[str, str] = {}

        def on_split(done: int, total: int, result: splits.SplitResult) -> None:
            terminal.warn(result.problem_count, result.problems)
            for kind, hint in _hints(result, tokenizer).items():
                if kind not in hints:
                    hints[kind] = hint
                    terminal.warn(1, [hint])
            bar.total = total
            bar.update(done - bar.n)
            if bar.disable and (done == total or done % max(1, total // 20) == 0):
                terminal.say(f"building corpus: {done} of {total} splits")

        return build.build(
            source,
            settings,
            tokenizer,
            output,
            runner=runner,
            workers=workers,
            on_split=on_split,
        )


def _hints(
    result: splits.SplitResult, tokenizer: tokenizer_lib.Tokenizer
) -> dict[str, str]:
    """Possible mistakes, by kind: each is reported at the first split that has it."""
    hints = dict(zip(result.hints, result.hints, strict=True))
    share = result.train.unknown_tokens / max(1, result.train.tokens)
    if share > _MANY_UNKNOWN:
        hints["unknown"] = (
            f"{share:.1%} of the tokens of {result.train.file} are "
            f"{tokenizer.special_tokens.unk}: the vocabulary does not cover this text; "
            "run.train_tokenizer learns one that does"
        )
    return hints


def describe(corpus: shards.Corpus) -> str:
    """The content of a corpus, in a line or two."""
    train, held_out = (
        ", ".join(
            f"{corpus.count(split, what):,} {what}"
            for what in ("documents", "sentences", "tokens")
        )
        for split in shards.SPLITS
    )
    unknown = corpus.unknown_share(shards.TRAIN)
    if unknown is not None:
        train += f" ({unknown:.2%} {corpus.tokenizer.special_tokens.unk})"
    text = f"{corpus.folder}: {train}; held out: {held_out}"
    if corpus.count(shards.HELD_OUT, "documents") < 2:
        text += (
            "\nwarning: fewer than two documents are held out, so there will be no "
            "evaluation; a larger --held_out gives some"
        )
    return text
