"""The measured models."""

from pathlib import Path

from demo import model_path

NAMES = ("demo", "wide")


def target_path(name: str) -> str:
    """Path or id of a target: of the demo's (`demo`), of its wide twin (`wide`), or `name` itself.

    The wide twin is first written to the user's cache if it is not there.
    """
    if name == "demo":
        return str(model_path("target"))
    return str(_wide_twin()) if name == "wide" else name


def _wide_twin() -> Path:
    from demo.wide import default_folder, write_wide_twin

    folder = default_folder()
    return folder if (folder / "model.safetensors").is_file() else write_wide_twin(folder)
