"""Samples of the text of a source, to learn a vocabulary from."""

import bisect
import itertools
import math
import random
import re
from collections.abc import Sequence

import numpy as np

from bert_jax import storage, terminal
from bert_jax.corpus import file_kinds, parquet_files, sources
from bert_jax.corpus.document_files import Problems
from bert_jax.errors import UserError

# Longer runs of letters are cut. Learning from a run takes time that grows with more
# than its length, and SentencePiece fails at a megabyte.
_LONG_RUN = re.compile(r"\S{1000}")


def read(source: sources.Source, sample_bytes: int) -> list[str]:
    """Read lines from splits in random order, up to an amount of text in UTF-8.

    A compressed file, or a row group of a Parquet file, can make a large split. Every
    large split is read to its end, and a random part of its lines is taken, so that the
    sample covers all of it. Small splits are read until they have their share.
    """
    lines: list[str] = []
    problems = Problems()
    # Small splits, however much there is: few large ones would be few books or sites.
    planned = sources.plan(source, max_splits=math.inf)
    rng = random.Random(0)
    rng.shuffle(planned)
    totals, largest = _text_bytes(planned, source)
    is_large = largest > 4 * source.split_bytes
    # Share of the text of a large split; bytes of text of all small ones.
    part, wanted = 1.0, float(sample_bytes)
    if is_large.any():
        share = sample_bytes / totals.sum()
        part, wanted = min(1.0, share), share * totals[~is_large].sum()
    size = size_of_small = 0
    with terminal.progress_bar(desc="reading text", unit="B", unit_scale=True) as bar:
        for split, large in zip(planned, is_large, strict=True):
            if not large and size_of_small >= wanted:
                continue
            for document in sources.read(split, source, problems):
                if not large and size_of_small >= wanted:
                    break
                # Lines rather than documents: SentencePiece samples from many texts.
                text = _LONG_RUN.sub(r"\g<0>\n", document.text)
                if large and part < 1:
                    chosen = (x for x in text.splitlines(True) if rng.random() < part)
                    text = "".join(chosen)
                lines += [line for line in re.split("[\r\n]", text) if line.strip()]
                added = len(text.encode("utf-8"))
                size += added
                size_of_small += 0 if large else added
                bar.update(added)
    if size > 2 * sample_bytes:  # text that was compressed more than estimated
        lines = [line for line in lines if rng.random() < sample_bytes / size]
    terminal.warn(problems.lines, problems.count)
    terminal.warn(problems.hints)
    if not lines:
        raise UserError(f"no text in {source.pattern or source.format}")
    return lines


def _text_bytes(
    planned: Sequence[sources.InputSplit], source: sources.Source
) -> tuple[np.ndarray, np.ndarray]:
    """Estimate the bytes of text in each split, and in its largest indivisible part.

    Indivisible parts are compressed files, and row groups of Parquet files. Both
    results are int [splits].
    """
    if source.format == "parquet":
        names = sorted({section.name for split in planned for section in split})
        fields = itertools.repeat(source.text_field)
        sizes = storage.map_in_threads(parquet_files.row_group_sizes, names, fields)
        shown = terminal.progress_bar(
            iterable=sizes, total=len(names), desc="reading metadata"
        )
        groups = {
            name: sorted(sizes.items())
            for name, sizes in zip(names, shown, strict=True)
        }
        undivided = [
            [
                size
                for section in split
                for _, size in _within(groups[section.name], section)
            ]
            for split in planned
        ]
        totals = list(map(sum, undivided))
    else:
        undivided = [
            [
                sources.text_bytes(section)
                for section in split
                if section.name.endswith(file_kinds.COMPRESSIONS)
            ]
            for split in planned
        ]
        totals = [sum(map(sources.text_bytes, split)) for split in planned]
    return np.array(totals), np.array([max(sizes, default=0) for sizes in undivided])


def _within(
    groups: list[tuple[int, int]], section: sources.Section
) -> list[tuple[int, int]]:
    """Return the row groups, sorted by their first bytes, that begin in a section."""
    first, end = (
        bisect.bisect_left(groups, (byte,)) for byte in (section.start, section.end)
    )
    return groups[first:end]
