"""How a target's processor prepares the media of a request."""

from typing import Annotated, Any

from pydantic import Field, StrictInt, model_validator

from engine_adapter.seam.text import short_repr
from server.media.pictures import MAX_PIXELS
from server.schema.base import Strict, unsupported

Pixels = Annotated[StrictInt, Field(ge=1, le=MAX_PIXELS)]
"""As many as a picture can have that is read."""


class ProcessorArguments(Strict):
    """Arguments of the target's processor, by the names that processors of transformers have.

    Only those that cannot disturb other requests: with another size of patches, for example, the
    engine's process would end. A processor ignores those of others.
    """

    min_pixels: Pixels | None = None
    max_pixels: Pixels | None = None
    crop_to_patches: bool | None = None
    do_image_splitting: bool | None = None
    do_pan_and_scan: bool | None = None
    pan_and_scan_min_crop_size: Pixels | None = None
    pan_and_scan_max_num_crops: Annotated[StrictInt, Field(ge=1, le=16)] | None = None
    pan_and_scan_min_ratio_to_activate: Annotated[float, Field(ge=1, le=1000)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, values: Any) -> Any:
        if isinstance(values, dict) and (unknown_names := values.keys() - cls.model_fields.keys()):
            names = ", ".join(cls.model_fields)
            raise unsupported(
                f"{short_repr(min(unknown_names))} is not one of a request's arguments, "
                f"which are {names}; --mm-processor-kwargs sets others for all requests"
            )
        return values

    def values(self) -> dict[str, Any]:
        """Those that the request has."""
        return self.model_dump(exclude_none=True)
