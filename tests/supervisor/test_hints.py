"""What is hinted at is looked at soon, what is in doubt wholly, and everything now and then."""

from collections.abc import Iterator

import pytest

from supervisor import hints
from supervisor.hints import ALL_SECONDS, LOOKS_APART_SECONDS, NEVER, Depth, Hints
from supervisor.mailbox import Mailbox


class Heard:
    """Hints, and the partials that were noticed."""

    def __init__(self) -> None:
        self.mailbox = Mailbox()
        self.partials: list[str] = []
        self.hints = Hints(None, self.mailbox, self.partials.append)
        self.hints.take(100.0)
        self.hints.look_at = NEVER

    def hear(self, *names: str | None) -> None:
        for name in names:
            self.hints.hear(name)
        self.mailbox.run_all(lambda: True)


@pytest.fixture
def heard() -> Iterator[Heard]:
    made = Heard()
    yield made
    made.mailbox.close()


def test_the_first_look_is_at_all_there_is() -> None:
    """Nothing is known before."""
    assert (frozenset(), Depth.ALL) == Hints(None, Mailbox(), lambda _: None).take(0.0)


def test_a_candidate_is_looked_at_soon_and_once(heard: Heard) -> None:
    """By its own name or that of its seal; what is no candidate asks for no look."""
    heard.hear("notes.txt")
    assert NEVER == heard.hints.look_at
    heard.hear("ckpt_1.pt", "ckpt_2.pt.sha256")

    assert 100.0 + LOOKS_APART_SECONDS == heard.hints.look_at
    assert (frozenset({"ckpt_1.pt", "ckpt_2.pt"}), Depth.HINTED) == heard.hints.take(101.0)
    assert (frozenset(), Depth.HINTED) == heard.hints.take(102.0)


def test_a_seal_alone_is_given_the_time_in_which_its_snapshot_comes(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at the seal would put off the one that counts."""
    monkeypatch.setattr(hints.time, "monotonic", lambda: 500.0)
    heard.hear("ckpt_2.pt.sha256")

    assert 500.0 + LOOKS_APART_SECONDS == heard.hints.look_at


def test_a_partial_is_noticed_and_asks_for_no_look(heard: Heard) -> None:
    """A save is under way; it is told with the next look."""
    heard.hear(".ckpt_2.pt.partial-1-00000000")

    assert [".ckpt_2.pt.partial-1-00000000"] == heard.partials
    assert NEVER == heard.hints.look_at


def test_in_doubt_all_is_looked_at(heard: Heard) -> None:
    """Once, and soon."""
    heard.hear(None)

    assert 100.0 + LOOKS_APART_SECONDS == heard.hints.look_at
    assert [Depth.ALL, Depth.HINTED] == [heard.hints.take(101.0)[1] for _ in range(2)]


def test_a_rescan_reads_the_names_and_now_and_then_every_file(heard: Heard) -> None:
    """An event may have been lost that told of bytes written in place."""
    depths = []
    for number in range(13):
        now = 100.0 + (number + 1) * ALL_SECONDS / 6
        heard.hints.rescan(now)
        assert 0.0 == heard.hints.look_at
        depths.append(heard.hints.take(now)[1])

    assert [Depth.LISTED] * 5 + [Depth.ALL] + [Depth.LISTED] * 5 + [Depth.ALL, Depth.LISTED] == depths
