"""The measuring part of `tpx analyze profile`: a run begun or resumed, its journal, and Ctrl-C."""

import asyncio
import signal
from collections.abc import Callable

from tpx.analyzer.accuracy import Gate
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.profile import Observer, Profile
from tpx.analyzer.results.journal import Journal, read_last_run
from tpx.analyzer.resume import Earlier, check_same_run
from tpx.analyzer.trial import TrialRunner
from tpx.analyzer.variants import OutputRepository
from tpx.cli.launching import open_runner

Say = Callable[[str], None]

AT_ONCE = 3
"""So many interrupts end a run without waiting for anything, as in Model Analyzer."""


async def measure(config: ProfileSpec, command: tuple[str, ...], observe: Observer, say: Say) -> None:
    """Everything that is still to be measured; what is found is in the journal, whatever ends the run."""
    earlier = _earlier(config, say) if config.output.resume or config.output.retry_failed else None
    if earlier is not None and earlier.complete:
        hint = "; --retry-failed tries again what failed" if earlier.failures else ""
        say(f"the run is complete: there is nothing to resume{hint}")
        return
    repository = OutputRepository(
        config.models.output_model_repository_path,
        None if config.server.triton_launch_mode == "remote" else config.models.model_repository,
        override=config.models.override_output_model_repository,
        keep=earlier is not None,
    )
    with Journal(config.output.journal_path) as journal:
        gate = Gate(
            tolerance=config.axes.accuracy_tolerance,
            seed=config.budget.seed,
            shapes={shape.name: shape.dims for shape in config.measurement.shape},
        )
        trials = TrialRunner(
            open_runner(config),
            repository,
            monitoring_interval_s=config.watch.monitoring_interval,
            gate=gate,
            gpus=config.server.chosen_gpus,
        )
        search = Profile(config, trials, journal, observe, earlier)
        work = asyncio.ensure_future(search.run(command))
        interrupts = Interrupts(search, work, say)
        interrupts.listen()
        try:
            await work
        except asyncio.CancelledError:
            if interrupts.count < AT_ONCE:
                raise
        finally:
            interrupts.ignore()


def _earlier(config: ProfileSpec, say: Say) -> Earlier:
    earlier = Earlier(
        read_last_run(config.output.journal_path) if config.output.journal_path.exists() else ()
    )
    check_same_run(earlier, config.as_settings(), config.output.journal_path)
    if config.output.retry_failed:
        failures = earlier.failures
        say(f"failed before, and tried again: {failures}" if failures else "nothing failed before")
        if failures:
            earlier.retry_failed()
    return earlier


class Interrupts:
    """The first Ctrl-C ends the run after the measurement in progress, the third at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, search: Profile, work: "asyncio.Future[None]", say: Say) -> None:
        self._search = search
        self._work = work
        self._say = say
        self.count = 0

    def listen(self) -> None:
        for number in self.SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt)

    def ignore(self) -> None:
        for number in self.SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _interrupt(self) -> None:
        self.count += 1
        if self.count == 1:
            self._search.stop()
            self._say("interrupted: finishing this measurement; two more Ctrl-C stop at once")
        elif self.count < AT_ONCE:
            self._say("still finishing this measurement; one more Ctrl-C stops at once, and loses it alone")
        else:
            self._work.cancel()
