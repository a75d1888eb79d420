"""The collector of garbage is as it was once nobody needs it off."""

import gc

from lastgood.uncollected import Uncollected


def test_two_at_a_time_leave_it_as_the_first_found_it() -> None:
    """Whichever leaves first: two threads may read at once, and a process must not be without it for good."""
    first, second = Uncollected(), Uncollected()
    first.__enter__()
    second.__enter__()
    first.__exit__()
    inside = gc.isenabled()
    second.__exit__()

    assert (False, True) == (inside, gc.isenabled())


def test_who_has_it_off_keeps_it_off() -> None:
    """It was not this that switched it off."""
    gc.disable()
    try:
        with Uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
