"""Joins that follow the queries of their session: one listener passes each event to all of them.

Spark does not say when a join is no longer needed, since its DataFrame may be started again. So a session
keeps all that were defined. Spark converts an event for each listener, which takes longer than most of them
need to see that it does not concern them.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

_ATTRIBUTE = "_handshake_listener"


def follow_queries(session: SparkSession, follower: object) -> None:
    """Pass the events of a session's queries to a join from now on.

    Args:
        session: The session.
        follower: An object with those methods of a `StreamingQueryListener` that it needs.
    """
    listener: _Listener | None = vars(session).get(_ATTRIBUTE)
    if listener is None:
        listener = _Listener()
        setattr(session, _ATTRIBUTE, listener)
        session.streams.addListener(listener)
    listener.followers.append(follower)


class _Listener(StreamingQueryListener):
    """The listener of a session."""

    def __init__(self) -> None:
        self.followers: list[object] = []

    def onQueryStarted(self, event: Any) -> None:
        self._pass_on("onQueryStarted", event)

    def onQueryProgress(self, event: Any) -> None:
        self._pass_on("onQueryProgress", event)

    def onQueryIdle(self, event: Any) -> None:
        self._pass_on("onQueryIdle", event)

    def onQueryTerminated(self, event: Any) -> None:
        self._pass_on("onQueryTerminated", event)

    def _pass_on(self, name: str, event: Any) -> None:
        """Pass an event to all joins; then raise the first error, which Spark reports."""
        errors: list[Exception] = []
        for follower in list(self.followers):
            try:
                getattr(follower, name, lambda event: None)(event)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
