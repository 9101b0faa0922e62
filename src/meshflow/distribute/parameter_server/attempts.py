"""Which attempt at a closure counts, when a worker dies with it or two run it: one and the same on all servers.

The first attempt has one server do its part, which with it gets what *others* are to do, and then those: one message each;
with the next message that server hears that it need not know those any more. Where that is much, all parts are *staged* first,
each on its server, and done when all have theirs. A later attempt stages its own, under a higher *ballot*, and hears from each
server what was done there. If one has done an earlier attempt's part, the others' parts are staged, or that server has them: the
later one has the others do them. If none has, none will: from the staging of a ballot on, servers refuse what comes under lower
ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshflow.distribute.parameter_server.messages import Ballot, Decision, Done, Push

__all__ = ["OVER", "Attempts"]

# The attempt that was done of a closure that the coordinator needs no more.
OVER = -1


class Attempts:
    """What one server knows of attempts at closures."""

    def __init__(self) -> None:
        # Closures with smaller numbers are over. Of the others, by number: what was done, the highest ballot, and what
        # attempts have staged.
        self.floor = 0
        self._done: dict[int, Done] = {}
        self._promised: dict[int, Ballot] = {}
        self._staged: dict[int, dict[int, Push]] = {}

    def raise_floor(self, floor: int) -> None:
        """Forgets closures that are over.

        Args:
          floor: all with smaller numbers are.
        """
        if floor > self.floor:
            self.floor = floor
            for known in (self._done, self._promised, self._staged):
                for closure in [c for c in known if c < floor]:
                    del known[closure]

    def done(self, closure: int) -> Done | None:
        """What was done of a closure; None when nothing was.

        Args:
          closure: its number.
        """
        return Done(OVER, {}) if closure < self.floor else self._done.get(closure)

    def stage(self, push: Push, ballot: Ballot) -> Done | None:
        """Keeps an attempt's push until there is a decision, and promises to heed none of lower ballots.

        Args:
          push: the push.
          ballot: its ballot.

        Returns:
          What was done before, if anything was.
        """
        done = self.done(push.closure)
        if done is None:
            # Also when there is a higher ballot: that one may find that this attempt was done elsewhere.
            self._staged.setdefault(push.closure, {})[push.attempt] = push
            self._promised[push.closure] = max(ballot, self._promised.get(push.closure, ballot))
        return done

    def refused(self, message: Push | Decision) -> int | None:
        """The round of a higher ballot, because of which this is not done; None where there is none.

        Args:
          message: a push, or a decision.
        """
        ballot = message.ballot if isinstance(message, Decision) else (0, message.attempt)
        promised = self._promised.get(message.closure, ballot)
        return promised[0] if promised > ballot else None

    def decided(self, message: Push | Decision) -> Push | None:
        """What is to be done; None where the attempt has nothing for this server.

        Args:
          message: a push, or a decision.
        """
        if isinstance(message, Push):
            return message
        return self._staged.get(message.closure, {}).get(message.attempt)

    def finish(self, closure: int, done: Done) -> None:
        """Notes what was done.

        Args:
          closure: the closure's number.
          done: the attempt, and what it has others do.
        """
        self._done[closure] = done
        self._promised.pop(closure, None)
        self._staged.pop(closure, None)

    def settle(self, closures: Iterable[int]) -> None:
        """Forgets what others were to do: they have done it.

        Args:
          closures: the closures' numbers.
        """
        for closure in closures:
            done = self._done.get(closure)
            if done is not None and done.others:
                self._done[closure] = done._replace(others={})

    def state(self) -> Any:
        """All of it, for `restore`."""
        staged = {closure: dict(pushes) for closure, pushes in self._staged.items()}
        return self.floor, dict(self._done), dict(self._promised), staged

    def restore(self, state: Any) -> None:
        """Takes over what `state` gave.

        Args:
          state: the state.
        """
        self.floor, self._done, self._promised, self._staged = state
