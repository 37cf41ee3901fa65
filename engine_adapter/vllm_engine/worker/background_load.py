"""Creates a proposer in a worker while the engine steps."""

import logging
from collections.abc import Callable
from threading import Thread

# Imported before a worker is set up: on CPU, vLLM then replaces it in torch by a no-op.
from torch import get_num_threads, set_num_threads

from engine_adapter.proposers.contract import Proposer, ProposerSpec
from engine_adapter.vllm_engine.wire import LoadState
from engine_adapter.vllm_engine.worker.device_memory import NoRoom
from engine_adapter.vllm_engine.worker.draft_validation import describe_error

log = logging.getLogger(__name__)


class BackgroundLoad:
    """The load of one proposer. A thread reads its weights; a step only installs the result.

    Args:
        spec: the proposer to create, of a method without draft KV.
        create: creates the proposer; it changes nothing that a step reads.

    Attributes:
        state: one of the load states of `wire`, and the reason of a failure.
    """

    def __init__(self, spec: ProposerSpec, create: Callable[[ProposerSpec], Proposer]) -> None:
        self.spec = spec
        self.state = (LoadState.READING, "")
        self._create = create
        self._proposer: Proposer | None = None
        # A daemon: an engine that stops does not wait for it.
        Thread(target=self._run, name=f"load-{spec.name}", daemon=True).start()

    @property
    def proposer(self) -> Proposer:
        """The proposer of a load that is ready."""
        assert self._proposer is not None
        return self._proposer

    def _run(self) -> None:
        threads = get_num_threads()
        set_num_threads(1)  # for this thread only: the cores belong to the step
        try:
            self._proposer = self._create(self.spec)
            self.state = (LoadState.READY, "")
        except NoRoom as error:
            self.state = (LoadState.NO_ROOM, str(error))
        except (ValueError, OSError) as error:
            self.state = (LoadState.REFUSED, str(error))
        except Exception as error:
            log.error("proposer %s could not be loaded", self.spec.name, exc_info=error)
            self.state = (LoadState.FAILED, describe_error(error))
        finally:
            set_num_threads(threads)  # the default of threads that start later
