"""Profile of some steps, for xprof."""

import jax

from bert_jax import config as config_lib
from bert_jax import storage


class Profiler:
    """Profiler of `profile_steps` steps, starting with `profile_step`."""

    def __init__(self, config: config_lib.LoopConfig, workdir: storage.Path):
        self._first = config.profile_step
        self._last = config.profile_step + config.profile_steps - 1
        self.folder = workdir / "profile"
        self._is_running = False

    def begins_before(self, step: int) -> bool:
        """Return whether the profile starts with this step."""
        return step == self._first

    def start(self) -> None:
        """Start the profile."""
        folder = self.folder
        # Files are named after the host: processes on one host need their own folder.
        if jax.process_count() > 1:
            folder = folder / f"process_{jax.process_index()}"
        jax.profiler.start_trace(str(folder))
        self._is_running = True

    def ends_after(self, step: int, *, is_last: bool) -> bool:
        """Return whether the profile ends with this step.

        Args:
          step: Number of the step.
          is_last: Whether no step of the same program follows.
        """
        return self._is_running and (step >= self._last or is_last)

    def stop(self) -> None:
        """Stop the profile."""
        jax.profiler.stop_trace()
        self._is_running = False
