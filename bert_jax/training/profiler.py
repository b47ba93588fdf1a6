"""A profile of some chosen steps, for xprof."""

import jax

from bert_jax import config as config_lib
from bert_jax import storage


class Profiler:
    """Profiles `profile_steps` steps from `profile_step` on, once."""

    def __init__(self, config: config_lib.LoopConfig, workdir: storage.Path):
        self._first = config.profile_step
        self._last = config.profile_step + config.profile_steps - 1
        self.folder = workdir / "profile"
        self._is_running = False

    def begins_before(self, step: int) -> bool:
        """Whether the profile begins with this step."""
        return step == self._first

    def start(self) -> None:
        """Begin."""
        folder = self.folder
        # Files are named for the host: processes that share one need their own folder.
        if jax.process_count() > 1:
            folder = folder / f"process_{jax.process_index()}"
        jax.profiler.start_trace(str(folder))
        self._is_running = True

    def ends_after(self, step: int, *, is_last: bool) -> bool:
        """Whether the profile ends with this step.

        Args:
          step: Number of the step.
          is_last: Whether no step of the same program follows.
        """
        return self._is_running and (step >= self._last or is_last)

    def stop(self) -> None:
        """End."""
        jax.profiler.stop_trace()
        self._is_running = False
