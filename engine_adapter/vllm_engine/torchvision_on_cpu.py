"""Makes an installed torchvision usable beside a torch for CPUs.

Package indexes have torchvision built for CUDA only. Beside a torch for CPUs its compiled extension
does not load. Its Python works without, and that is all that vLLM and transformers use: transforms
of pictures. But torchvision describes two operators of the extension when it is imported, and fails
where they do not exist. So this declares them in the installed package.

    python -m engine_adapter.vllm_engine.torchvision_on_cpu
"""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

_MARK = "# Declared by Specgate: the extension for CUDA does not load beside a torch for CPUs."

_DECLARATION = f"""

{_MARK}
if not _has_ops():
    _operators = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _operators.define(f"{{_name}}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def declare_operators(package: Path) -> bool:
    """Declares the operators in torchvision's folder; returns whether that was to be done.

    Raises:
        ValueError: the folder's `extension.py` is not as this function knows it.
    """
    path = package / "extension.py"
    source = path.read_text("utf-8")
    if _MARK in source:
        return False
    if (
        not re.search(r"^def _has_ops\(\)", source, re.MULTILINE)
        or "\nimport torch\n" not in source
    ):
        raise ValueError(f"{path} has no function _has_ops: this torchvision is not supported")
    path.write_text(source + _DECLARATION, "utf-8")
    return True


def main() -> None:
    """Declares them in the installed torchvision; does nothing if a torch for CUDA is installed."""
    import torch

    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        sys.exit("torchvision is not installed; run: pip install --no-deps torchvision")
    if torch.version.cuda is None and declare_operators(Path(spec.origin).parent):
        print("torchvision runs without its extension, which is for CUDA")


if __name__ == "__main__":
    main()
