"""What the garbage collector looks at."""

import gc


def is_searched(item: object) -> bool:
    """Whether the garbage collector looks at an object."""
    return any(item is searched for searched in gc.get_objects())
