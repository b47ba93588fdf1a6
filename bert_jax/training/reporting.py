"""What a run tells: metrics.jsonl, TensorBoard, and the terminal."""

import json
import os
import pathlib
import sys
from typing import Any

import tqdm

# Shown on the terminal, in this order, if there.
_SHOWN = ("loss", "mlm_loss", "mlm_accuracy", "nsp_accuracy", "accuracy")
_SHOWN_IN_TRAINING = ("learning_rate", "sequences_per_sec", "mfu")


class Reporter:
    """Writes metrics as they come and shows how far the run is.

    On a terminal there is a progress bar, elsewhere a plain line for each report.
    """

    def __init__(self, folder: pathlib.Path, total_steps: int, step: int):
        """Open the files of a run.

        Args:
          folder: the workdir.
          total_steps: of the whole run.
          step: that the run continues from. Lines of later steps, written before a
            crash, go: they will come again.
        """
        path = folder / "metrics.jsonl"
        _drop_lines_after(path, step)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115
        self._total_steps = total_steps
        self._tensorboard = _tensorboard_writer(folder, step)
        self._bar = progress_bar(total=total_steps, initial=step, unit="step")

        if step:
            verb = "continuing at" if step < total_steps else "already done:"
            self.say(f"{verb} step {step} of {total_steps}")

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def write(self, step: int, split: str, values: dict[str, float]) -> None:
        """Report values; when this returns, they outlive the process."""
        values = {name: float(f"{value:.7g}") for name, value in values.items()}
        record: dict[str, Any] = {"step": step, "split": split, **values}
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        if self._tensorboard:
            for name, value in values.items():
                self._tensorboard.add_scalar(f"{split}/{name}", value, step)
        names = _SHOWN + (_SHOWN_IN_TRAINING if split == "train" else ())
        shown = [f"{n} {values[n]:.4g}" for n in names if n in values]
        if split == "train" and not self._bar.disable:
            self._bar.set_postfix_str("  ".join(shown))
        else:
            self.say(f"{split} step {step}/{self._total_steps}  " + "  ".join(shown))

    def advance(self, step: int, label: str) -> None:
        """Move the progress bar to a step that is done."""
        self._bar.set_description_str(label, refresh=False)
        self._bar.update(step - self._bar.n)

    def say(self, line: str) -> None:
        """A line for people."""
        say(line)

    def close(self) -> None:
        """End the bar and the files."""
        self._bar.close()
        self._file.close()
        if self._tensorboard:
            self._tensorboard.close()


def progress_bar(**options: Any) -> tqdm.tqdm:
    """A bar on a terminal; nothing, with `disable` set, elsewhere."""
    return tqdm.tqdm(
        file=sys.stderr, disable=not sys.stderr.isatty(), dynamic_ncols=True, **options
    )


def say(line: str) -> None:
    """Print a line above a progress bar, if there is one."""
    tqdm.tqdm.write(line, file=sys.stderr)
    sys.stderr.flush()


def _drop_lines_after(path: pathlib.Path, step: int) -> None:
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    # The last line may have been cut off in the middle.
    kept = [ln for ln in lines if ln.endswith(b"\n") and json.loads(ln)["step"] <= step]
    temporary = path.with_name("metrics.jsonl.tmp")
    temporary.write_bytes(b"".join(kept))
    os.replace(temporary, path)


def _tensorboard_writer(folder: pathlib.Path, step: int):
    try:
        import tensorboardX
    except ImportError:  # an extra; metrics.jsonl has everything
        return None
    return tensorboardX.SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
