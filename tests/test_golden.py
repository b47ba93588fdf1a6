"""Batches and reports are those on record (`golden.py` writes the records).

If one differs and is meant to, say in docs/log.md what changed and why, and write the
record again in the same commit.
"""

import json

import golden
import pytest


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return golden.make_corpus(tmp_path_factory.mktemp("golden"))


def test_batches_are_those_on_record(corpus):
    got = golden.batch_hashes(corpus)
    lines = (golden.FOLDER / "batches.txt").read_text().splitlines()
    recorded = dict(reversed(line.split(" ", 1)) for line in lines)
    assert got == recorded


@pytest.mark.runs
def test_smoke_runs_report_what_is_on_record(corpus, tmp_path):
    """To rounding: CPUs differ in the order in which they add."""
    for name, records in golden.smoke_reports(corpus, tmp_path).items():
        lines = (golden.FOLDER / f"{name}.jsonl").read_text().splitlines()
        recorded = [json.loads(line) for line in lines]
        assert [r.keys() for r in records] == [r.keys() for r in recorded], name
        for got, expected in zip(records, recorded, strict=True):
            assert got == {
                key: value
                if isinstance(value, str)
                else pytest.approx(value, rel=1e-4, abs=1e-6)
                for key, value in expected.items()
            }, (name, expected["step"])
