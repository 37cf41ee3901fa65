"""Creating a proposer in a worker while the engine steps, and giving its memory back."""

import ctypes
import logging
from collections.abc import Callable
from threading import Thread

# As it is before a worker is set up: on CPU, vLLM then replaces it by one that does nothing.
from torch import get_num_threads, set_num_threads

from engine_adapter.proposers.contract import Proposer, ProposerSpec
from engine_adapter.vllm_engine.wire import LoadState
from engine_adapter.vllm_engine.worker.draft_validation import cause

log = logging.getLogger(__name__)


class BackgroundLoad:
    """One proposer on its way. A thread reads its weights; the step only takes it over.

    Args:
        spec: what to create; of a method without draft KV.
        create: makes the proposer; it changes nothing that a step reads.

    Attributes:
        state: how far it is, and why it ended where it did.
    """

    def __init__(self, spec: ProposerSpec, create: Callable[[ProposerSpec], Proposer]) -> None:
        self.spec = spec
        self.state = (LoadState.READING, "")
        self._create = create
        self._proposer: Proposer | None = None
        # An engine that stops does not wait for it.
        Thread(target=self._run, name=f"load-{spec.name}", daemon=True).start()

    def take(self) -> Proposer:
        """The proposer of a load that is ready, once."""
        proposer, self._proposer = self._proposer, None
        assert proposer is not None
        return proposer

    def _run(self) -> None:
        threads = get_num_threads()
        set_num_threads(1)  # this thread's own: the cores belong to the step
        try:
            self._proposer = self._create(self.spec)
            self.state = (LoadState.READY, "")
        except (ValueError, OSError) as error:
            self.state = (LoadState.REFUSED, str(error))
        except Exception as error:
            log.error("proposer %s could not be loaded", self.spec.name, exc_info=error)
            self.state = (LoadState.FAILED, cause(error))
        finally:
            set_num_threads(threads)  # what threads that come later begin with


def return_memory() -> None:
    """Has freed memory returned to the system, in a thread.

    glibc keeps what other threads than the first have freed, so that of weights read here.
    """
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        Thread(target=trim, args=(0,), name="malloc-trim", daemon=True).start()
