"""Protocol by which all servers apply the same attempt at a closure.

Several workers may run the same closure, because the first one died or is slow, and their writes
differ. All servers must apply the writes of one attempt.

Fast path: the worker of the first attempt sends a push to one server, together with the pushes for
the *other* servers. That server applies its own push and remembers the others, and then the worker
sends these. Its next message lets the first server forget them.

Two-phase path: if the pushes for the others are large, all pushes are first *staged*, each on its
server, and then a `Decision` applies them. Later attempts always do so, under a higher *ballot*.
The replies to the staging show which attempt has been applied on which server. If one server has
applied an earlier attempt, the worker has the other servers apply that attempt: the first server
remembers its pushes, or the others have staged them. If none has, none will: after staging a
ballot, a server refuses all lower ballots (as an acceptor does in Paxos).

The worker of an attempt that fails does the same with pushes that contain nothing, under the attempt
`FAILED`, if there may be other attempts. So the servers apply all of a closure that fails, or none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from meshflow.distribute.parameter_server.transport.messages import (
    Ballot,
    CompletedAttempt,
    Decision,
    Push,
)

# The attempt in the records of closures that are finished, and will not be attempted again; and in
# those of closures of which an attempt has failed and no other one was applied.
FINISHED, FAILED = -1, -2

# All fields of `AttemptLog`, as they are written to a snapshot.
AttemptState: TypeAlias = tuple[
    int, dict[int, CompletedAttempt], dict[int, Ballot], dict[int, dict[int, Push]]
]


class AttemptLog:
    """Attempts at closures that one server knows.

    Attributes:
      floor: Closures with smaller ids are finished.
    """

    def __init__(self) -> None:
        # By closure id, for closures from the floor on: the attempt that was applied, the highest
        # ballot that was promised, and the pushes that attempts have staged.
        self.floor = 0
        self._done: dict[int, CompletedAttempt] = {}
        self._promised: dict[int, Ballot] = {}
        self._staged: dict[int, dict[int, Push]] = {}

    def raise_floor(self, floor: int) -> None:
        """Forget closures that are finished.

        Args:
          floor: All closures with smaller ids are finished.
        """
        if floor > self.floor:
            self.floor = floor
            for records in (self._done, self._promised, self._staged):
                for closure_id in [c for c in records if c < floor]:
                    del records[closure_id]

    def find_completed(self, closure: int) -> CompletedAttempt | None:
        """Return the attempt at a closure that was applied, or None.

        Args:
          closure: Id of the closure.
        """
        return CompletedAttempt(FINISHED, {}) if closure < self.floor else self._done.get(closure)

    def stage(self, push: Push, ballot: Ballot) -> CompletedAttempt | None:
        """Store the push of an attempt until there is a decision, and promise to refuse lower ballots.

        Args:
          push: The push.
          ballot: Ballot of the attempt.

        Returns:
          The attempt that was applied before, or None.
        """
        done = self.find_completed(push.closure)
        if done is None:
            # The push is stored even if a higher ballot was promised: the worker of that ballot may
            # find that this attempt was applied by another server.
            self._staged.setdefault(push.closure, {})[push.attempt] = push
            self._promised[push.closure] = max(ballot, self._promised.get(push.closure, ballot))
        return done

    def find_refusal(self, message: Push | Decision) -> int | None:
        """Return the round of a higher ballot because of which a message is refused, or None.

        Args:
          message: A push or a decision.
        """
        ballot = message.ballot if isinstance(message, Decision) else (0, message.attempt)
        promised = self._promised.get(message.closure, ballot)
        return promised[0] if promised > ballot else None

    def select_push(self, message: Push | Decision) -> Push | None:
        """Return the push to apply, or None if the chosen attempt has none for this server.

        Args:
          message: A push or a decision.
        """
        if isinstance(message, Push):
            return message
        return self._staged.get(message.closure, {}).get(message.attempt)

    def finish(self, closure: int, done: CompletedAttempt) -> None:
        """Record the attempt at a closure that was applied.

        Args:
          closure: Id of the closure.
          done: The attempt and its pushes to other servers.
        """
        self._done[closure] = done
        self._promised.pop(closure, None)
        self._staged.pop(closure, None)

    def forget_others(self, closures: Iterable[int]) -> None:
        """Forget the pushes to other servers, which these have applied.

        Args:
          closures: Ids of the closures.
        """
        for closure_id in closures:
            done = self._done.get(closure_id)
            if done is not None and done.others:
                self._done[closure_id] = done._replace(others={})

    def get_state(self) -> AttemptState:
        """Return a copy of all fields, for `restore`."""
        staged = {closure_id: dict(pushes) for closure_id, pushes in self._staged.items()}
        return self.floor, dict(self._done), dict(self._promised), staged

    def restore(self, state: AttemptState) -> None:
        """Replace all fields by those that `get_state` has returned.

        Args:
          state: The state.
        """
        self.floor, self._done, self._promised, self._staged = state
