"""Damaged files: each is read or refused, at once."""

import random
import time
from collections.abc import Callable, Sequence

from server.errors import InvalidField


def check_damaged(files: Sequence[bytes], read: Callable[[bytes], bool]) -> None:
    """Damages files at random a thousand times.

    Args:
        read: whether the content of a file is as it should be; raises `InvalidField` if it cannot
            be read.
    """
    generator = random.Random(7)
    num_refused = 0
    for _ in range(1000):
        content = bytearray(generator.choice(files))
        # Half of the files in their headers, which decide most.
        num_bytes = len(content) if generator.random() < 0.5 else min(len(content), 400)
        for _ in range(generator.randint(1, 12)):
            content[generator.randrange(num_bytes)] = generator.randrange(256)
        if generator.random() < 0.3:
            del content[generator.randrange(len(content)) :]
        begin_s = time.perf_counter()
        try:
            assert read(bytes(content))
        except InvalidField:
            num_refused += 1
        assert time.perf_counter() - begin_s < 5
    assert 100 < num_refused < 1000
