"""What can go wrong in an engine. No HTTP here: `server.errors` maps these to responses.

EngineError
├── EngineConfigError   a setting cannot work (before or during the start)
├── EngineStartError    loading failed
├── EngineNotReady      asked before the start has ended
├── EngineDead          the engine process is gone
├── ProposerRefused     a proposer cannot be loaded or unloaded as things are
├── LoraRefused      a LoRA adapter cannot be loaded or unloaded as things are
└── InvalidRequest      one request cannot be honoured; `param` names its field
"""


class EngineError(Exception):
    """Base of everything that an engine raises on purpose."""


class EngineConfigError(EngineError):
    """A setting cannot work.

    Attributes:
        setting: the setting's name as the user writes it, e.g. `proposer`.
        message: what was wrong and what would be right.
        field: for a setting that is an object, the field at fault, if it is one alone.
        code: a short constant for programs where that field is missing or unknown:
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
    """The engine could not be loaded, for a reason that is no setting's fault."""


class EngineNotReady(EngineError):
    """The engine has not started yet."""


class EngineDead(EngineError):
    """The engine died; requests in flight are lost and say so. The message is for clients.

    Attributes:
        retry_after_s: seconds until another process should serve; `None` if none will.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ProposerRefused(EngineError):
    """A proposer cannot be loaded or unloaded as things are; nothing changed.

    Attributes:
        code: a short constant for programs: `proposer_not_found`, `proposer_exists`,
            `proposer_in_use`, `needs_restart` or `load_in_progress`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class LoraRefused(EngineError):
    """A LoRA adapter cannot be loaded or unloaded as things are; nothing changed.

    Attributes:
        code: a short constant for programs: `adapter_not_found`, `adapter_exists`,
            `adapter_in_use`, `no_room` or `lora_disabled`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class InvalidRequest(EngineError):
    """A request that the engine cannot honour.

    Attributes:
        param: the request's field, as on the wire.
        code: a short constant for programs, or `None`.
    """

    def __init__(self, param: str | None, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
