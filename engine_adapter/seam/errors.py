"""The exceptions of the seam. There is no HTTP here: `server.errors` maps them to responses.

EngineError
├── EngineConfigError   a setting cannot work (before or during the start)
├── EngineStartError    the engine cannot be loaded
├── EngineNotReady      a call came before the start had ended
├── EngineDead          the engine process is dead
├── EngineFull          the engine has no room for a request now; it may have some later
├── ProposerRefused     a proposer cannot be loaded or unloaded in the current state
├── LoraRefused         a LoRA adapter cannot be loaded or unloaded in the current state
└── InvalidRequest      the engine cannot do what one request asks; `param` names its field
"""

CONSTRAINT_TOO_COMPLEX = "constraint_too_complex"
"""The code of an `InvalidRequest` whose constraint takes too much time or memory."""


class EngineError(Exception):
    """Base of the exceptions that an engine raises on purpose."""


class EngineConfigError(EngineError):
    """A setting cannot work.

    Attributes:
        setting: the setting's name as the user writes it, e.g. `proposer`.
        message: the fault and the remedy.
        field: for a setting that is an object, the one field at fault, if there is one.
        code: a short constant for programs, or `None`; for that field such as
            `missing_required_parameter` or `unknown_parameter`.
    """

    def __init__(
        self, setting: str, message: str, field: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(f"{setting}: {message}")
        self.setting = setting
        self.message = message
        self.field = field
        self.code = code


class EngineStartError(EngineError):
    """The engine could not be loaded, although its settings can work."""


class EngineNotReady(EngineError):
    """The engine has not started yet."""


class EngineDead(EngineError):
    """The engine is dead; it raises this for every running request. The message is for clients.

    Attributes:
        retry_after_s: seconds until a new process should serve; `None` if there will be none.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineFull(EngineError):
    """The engine has no room for a request while others run; the message says why, as a clause."""


class ProposerRefused(EngineError):
    """A proposer cannot be loaded or unloaded in the current state; nothing changed.

    Attributes:
        code: a short constant for programs: `proposer_not_found`, `proposer_exists`,
            `proposer_in_use`, `needs_restart`, `no_room` or `load_in_progress`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class LoraRefused(EngineError):
    """A LoRA adapter cannot be loaded or unloaded in the current state; nothing changed.

    Attributes:
        code: a short constant for programs: `adapter_not_found`, `adapter_exists`,
            `adapter_in_use`, `no_room` or `lora_disabled`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class InvalidRequest(EngineError):
    """The engine cannot do what a request asks.

    Attributes:
        param: the request's field, as on the wire.
        code: a short constant for programs, or `None`.
    """

    def __init__(self, param: str | None, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
