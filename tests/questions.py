"""Small files in the format of SQuAD."""

import json

CONTEXT = "The value of the name is an object. The class of the object is a type."
# Questions on it, with their answers; "": no answer.
QUESTIONS = [
    ("what is the value", "an object"),
    ("what is the class of the object", "a type"),
    ("whose value is it", "the name"),
    ("what is a module", ""),
]


def paragraph(context, questions, prefix="q"):
    """Return a paragraph. An answer lies where its text occurs first."""
    qas = []
    for i, (question, answer) in enumerate(questions):
        golds = [{"text": answer, "answer_start": context.find(answer)}]
        entry = {"id": f"{prefix}{i}", "question": question, "answers": golds}
        if not answer:
            entry |= {"answers": [], "is_impossible": True}
        qas.append(entry)
    return {"context": context, "qas": qas}


def write(path, *paragraphs):
    """Write a file with one article."""
    content = {"version": "x", "data": [{"title": "t", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def write_pair(folder, *, no_answers):
    """Write files to train and to evaluate on; return their config fields."""
    questions = QUESTIONS if no_answers else QUESTIONS[:3]
    long = " ".join([CONTEXT] * 3)
    train = [
        paragraph(CONTEXT if i % 2 else long, questions, f"{i}-") for i in range(6)
    ]
    held_out = [paragraph(CONTEXT, questions, "a"), paragraph(long, questions, "b")]
    return {
        "train": write(folder / "train.json", *train),
        "eval": write(folder / "eval.json", *held_out),
    }
