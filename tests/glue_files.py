"""Small folders in the layout of GLUE's download."""

from corpora import COMPRESS

from bert_jax import config
from bert_jax.tasks import glue

HEADERS = {
    "sst2": "sentence\tlabel",
    "mrpc": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\t"
        "sentence2\tscore"
    ),
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "mnli": (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\t"
        "sentence2_binary_parse\tsentence1_parse\tsentence2_parse\tsentence1\t"
        "sentence2\tlabel1\tgold_label"
    ),
    "qnli": "index\tquestion\tsentence\tlabel",
    "rte": "index\tsentence1\tsentence2\tlabel",
    "wnli": "index\tsentence1\tsentence2\tlabel",
}
# Headers of test files; the other tasks drop the column of labels.
TEST_HEADERS = {
    "cola": "index\tsentence",
    "sst2": "index\tsentence",
    "mrpc": "\ufeffindex\t#1 ID\t#2 ID\t#1 String\t#2 String",
}
COLA = ["source", "label", "mark", "sentence"]


def rows(header, task, count, start=0):
    """Yield lines for a header, with texts that count up and each label in turn."""
    spec = glue.TASKS[task]
    labels = spec.labels or ("0.000", "5.000", "2.500")
    for i in range(start, start + count):
        fields = {spec.text_a: f'a "{i}', spec.text_b: f"value {i}"}
        fields[spec.label] = labels[i % len(labels)]
        yield "\t".join(fields.get(name, f"{i}") for name in header)


def write(path, header, lines):
    path.parent.mkdir(exist_ok=True)
    lines = [*([header] if header else []), *lines]
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(data))


def download(folder, task):
    """Write a folder with 6 training rows, 4 rows per held-out set, 3 per test set."""
    spec, folder = glue.TASKS[task], folder / config.GLUE[task]
    header = HEADERS.get(task, "")
    names = header.removeprefix("\ufeff").split("\t") if header else COLA
    write(folder / "train.tsv.gz", header, rows(names, task, 6))
    for _, file in spec.held_out:
        write(folder / f"{file}.tsv", header, rows(names, task, 4, 6))
    without = "\t".join(n for n in names if n not in (spec.label, "label1"))
    test_header = TEST_HEADERS.get(task, without)
    columns = test_header.removeprefix("\ufeff").split("\t")
    for _, file in spec.tests[: 2 if task == "mnli" else 1]:
        write(folder / f"{file}.tsv", test_header, rows(columns, task, 3, 10))
    if task == "mnli":
        names = ["index", spec.text_a, spec.text_b]
        path = folder.parent / "diagnostic" / "diagnostic.tsv"
        write(path, "\t".join(names), rows(names, task, 3, 10))
    return folder
