"""Reports of a run: metrics.jsonl, TensorBoard, and the terminal."""

import contextlib
import json
import os
import time
from collections.abc import Sequence
from typing import Any

import jax

from bert_jax import storage, terminal
from bert_jax.training import metrics_file, processes, programs

# Interval between writes to an object store, besides the one before each checkpoint.
_FLUSH_SECONDS = 30.0

# Suffixes of the training metrics that the terminal shows, and of the evaluation
# metrics that it hides.
_SHOWN_IN_TRAINING = (
    "loss",
    "accuracy",
    "learning_rate",
    "sequences_per_sec",
    "tokens_per_sec",
    "mfu",
)
_HIDDEN_IN_EVALUATION = ("padding_fraction", metrics_file.WITHOUT_CONTEXT)


class Reporter(contextlib.AbstractContextManager):
    """Writer of metrics, and display of progress.

    Progress is a bar on a terminal, and a line for each report elsewhere. Process 0
    writes and prints; the reporters of other processes do nothing.
    """

    def __init__(self, folder: storage.Path, total_steps: int, step: int):
        """Open the files of a run.

        Lines of steps after `step`, written before a crash, are dropped: they will be
        written again.
        """
        self._silent = not processes.is_main()
        if self._silent:
            return
        self._path = folder / metrics_file.FILE
        dropped = _drop_lines_after(self._path, step)
        self._is_remote = storage.is_remote(folder)
        if self._is_remote:
            # Objects cannot be appended to, so the whole file is rewritten.
            self._text = self._read()
            self._flushed = time.monotonic()
        self._total_steps = total_steps
        self._tensorboard = _tensorboard_writer(folder, step)
        self._bar = terminal.progress_bar(total=total_steps, initial=step, unit="step")

        if not step and dropped:
            terminal.say(f"no checkpoint in {folder}: starting again from step 0")
        if step:
            verb = "continuing at" if step < total_steps else "already done:"
            terminal.say(f"{verb} step {step} of {total_steps}")

    def write(self, step: int, split: str, values: dict[str, float]) -> None:
        """Report metrics, which are on disk when this returns.

        An object store gets them with `flush`, or with a later report.
        """
        if self._silent:
            return
        values = {name: metrics_file.rounded(value) for name, value in values.items()}
        line = json.dumps({"step": step, "split": split, **values}) + "\n"
        if self._is_remote:
            self._text += line
            if time.monotonic() - self._flushed > _FLUSH_SECONDS:
                self.flush()
        else:
            hint = "run the same command when it can be written again"
            with (
                storage.writing(self._path, hint),
                open(self._path, "a", encoding="utf-8") as stream,
            ):
                stream.write(line)
                stream.flush()
                os.fsync(stream.fileno())
        if self._tensorboard:
            for name, value in values.items():
                self._tensorboard.add_scalar(f"{split}/{name}", value, step)
        shown = [
            f"{name} {value:.4g}"
            for name, value in values.items()
            if _is_shown(split, name)
        ]
        if split == "train" and not self._bar.disable:
            self._bar.set_postfix_str("  ".join(shown))
        else:
            terminal.say(
                f"{split} step {step}/{self._total_steps}  " + "  ".join(shown)
            )

    def advance(self, step: int, label: str) -> None:
        """Move the progress bar to a completed step."""
        if self._silent:
            return
        self._bar.set_description_str(label, refresh=False)
        self._bar.update(step - self._bar.n)

    def records(self, split: str) -> dict[int, dict[str, Any]]:
        """Return the records of a split by step, including earlier starts of the run.

        Processes other than process 0 have none.
        """
        if self._silent:
            return {}
        text = self._text if self._is_remote else self._read()
        records = map(metrics_file.parse, text.splitlines())
        return {r["step"]: r for r in records if r and r["split"] == split}

    def flush(self) -> None:
        """Write all reports to the object store."""
        if not self._silent and self._is_remote:
            with storage.writing(self._path):
                storage.write_text(self._path, self._text)
            self._flushed = time.monotonic()

    def _read(self) -> str:
        if not self._path.exists():
            return ""
        return self._path.read_text(encoding="utf-8")

    def __exit__(self, *exception) -> None:
        """Close the progress bar and the files."""
        if self._silent:
            return
        self._bar.close()
        self.flush()
        if self._tensorboard:
            with contextlib.suppress(OSError):  # metrics.jsonl has everything
                self._tensorboard.close()


def write_not_finite(
    folder: storage.Path, step: int, report: programs.StepReport, rows: Sequence[str]
) -> str:
    """Write a file about the batch of a step that is not finite, and describe it.

    `rows` are the sources of the rows of the batch that this process made.
    """
    loss, grad_norm = float(report.loss), float(report.grad_norm)
    path = folder / f"not_finite_step_{step}_process_{jax.process_index()}.json"
    details = {"step": step, "loss": str(loss), "grad_norm": str(grad_norm)}
    text = json.dumps({**details, "rows": list(rows)}, indent=1) + "\n"
    with storage.writing(path):
        storage.write_text(path, text)
    first = "; ".join(rows[:4]) + (f"; {len(rows) - 4} more" if rows[4:] else "")
    return (
        f"step {step}: loss {loss}, gradient norm {grad_norm}; {path} lists the rows "
        f"of the batch ({first})"
    )


def _drop_lines_after(path: storage.Path, step: int) -> int:
    """Drop lines of later steps and damaged lines; return how many were dropped."""
    if not path.exists():
        return 0
    with storage.writing(path):
        lines = path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if _is_kept(line, step)]
        if len(kept) < len(lines):
            storage.write_bytes(path, b"".join(kept))
    return len(lines) - len(kept)


def _is_kept(line: bytes, step: int) -> bool:
    record = metrics_file.parse(line)
    return record is not None and line.endswith(b"\n") and record["step"] <= step


def _is_shown(split: str, name: str) -> bool:
    """Return whether the terminal shows a metric."""
    if split == "train":
        return name.endswith(_SHOWN_IN_TRAINING)
    return not name.endswith(_HIDDEN_IN_EVALUATION)


def _tensorboard_writer(folder: storage.Path, step: int) -> Any:
    if storage.is_remote(folder):
        return None
    try:
        import tensorboardX
    except ImportError:  # an extra; metrics.jsonl has everything
        return None
    path = folder / "tensorboard"
    with storage.writing(path):
        # A queue without a limit (0): its thread may have ended at a full disk. Points
        # of saved steps are on disk soon, because no later start writes them again.
        return tensorboardX.SummaryWriter(
            str(path), purge_step=step + 1, max_queue=0, flush_secs=1
        )
