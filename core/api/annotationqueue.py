"""Annotations of concurrent requests, written by one transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from core.errors import StudioError
from core.pool.labels import Labels
from core.types import Annotation

MAX_REQUESTS: Final = 256


class _Request:
    """The annotations of one request, and what became of them."""

    def __init__(self, annotations: Sequence[Annotation]) -> None:
        self.annotations = annotations
        self.action_uid: str | None = None
        self.error: Exception | None = None


class AnnotationQueue:
    """Group commit: planning and syncing a transaction takes longer than its rows.

    The first request writes all that wait at that moment. Requests that arrive meanwhile are written together next.

    Args:
        labels: where annotations go.
        catch_up: brings what is in the journal into the pool; called if a target is not in the pool yet.
    """

    def __init__(self, labels: Labels, catch_up: Callable[[], object]) -> None:
        self._labels, self._catch_up = labels, catch_up
        self._guard = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: list[_Request] = []

    def append(self, annotations: Sequence[Annotation]) -> str:
        """Append one request's annotations, all or nothing; returns their ``action_uid`` when they are durable.

        Raises:
            NotFound: a target does not exist.
            InvalidInput: a value does not fit its kind.
        """
        request = _Request(annotations)
        with self._guard:
            self._waiting.append(request)
        with self._writing:
            while request.action_uid is None and request.error is None:
                with self._guard:
                    batch, self._waiting = self._waiting[:MAX_REQUESTS], self._waiting[MAX_REQUESTS:]
                self._write(batch)
        if request.error is not None:
            raise request.error
        assert request.action_uid is not None
        return request.action_uid

    def _write(self, batch: Sequence[_Request]) -> None:
        try:
            uids = self._labels.annotate_each([request.annotations for request in batch], label="api")
        except StudioError:
            self._catch_up()
            for request in batch:
                try:
                    (request.action_uid,) = self._labels.annotate_each([request.annotations], label="api")
                except Exception as error:
                    request.error = error
        except Exception as error:
            for request in batch:
                request.error = error
        else:
            for request, uid in zip(batch, uids, strict=True):
                request.action_uid = uid
