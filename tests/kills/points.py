"""SIGKILL at a named point of the real service, which knows nothing of it.

``CLAW_KILL`` is ``role/point/when/n``: ``owner`` or ``worker``; ``sync``, ``rename``, ``commit`` or ``reply``;
``before`` or ``after``; the how many-th such moment of the process. ``CLAW_KILL_DONE`` is a file that is made at that
moment, so that a process which is started again lives.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Counter:
    """Counts the moments of one point and ends the process at the wanted one."""

    def __init__(self, when: str, n: int, done: str) -> None:
        self.when, self.left, self.done = when, n, done

    def around(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def acted(*args: Any, **kwargs: Any) -> Any:
            self.moment("before")
            result = act(*args, **kwargs)
            self.moment("after")
            return result

        return acted

    def moment(self, when: str) -> None:
        if when != self.when:
            return
        self.left -= 1
        if self.left == 0:
            try:
                os.close(os.open(self.done, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)


class Loader(importlib.abc.Loader):
    """The module's own loader, and then a change to the module."""

    def __init__(self, loader: Any, change: Callable[[Any], None]) -> None:
        self.loader, self.change = loader, change

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self.loader.exec_module(module)
        self.change(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds one module as everybody does, and has it changed when it is loaded."""

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self.name, self.change = name, change

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        spec.loader = Loader(spec.loader, self.change)
        return spec


def commits(counter: Counter) -> Callable[[Any], None]:
    """``core.pool.upkeep.loggedtables``: its cursor is what transactions go through."""

    def counted(module: Any) -> None:
        execute = module.RecordingCursor.execute

        def watched(self: Any, sql: str, *more: Any) -> Any:
            if sql != "COMMIT":
                return execute(self, sql, *more)
            return counter.around(execute)(self, sql, *more)

        module.RecordingCursor.execute = watched

    return counted


def replies(counter: Counter) -> Callable[[Any], None]:
    """``core.gateway.http.server``: every answer goes through the app's ``send``."""

    def counted(module: Any) -> None:
        init = module.GatewayServer.__init__

        def made(self: Any, app: Any, **kwargs: Any) -> None:
            async def replying(scope: Any, receive: Any, send: Any) -> None:
                async def sent(message: Any) -> None:
                    if message["type"] == "http.response.start":
                        counter.moment("before")
                    await send(message)
                    if message["type"] == "http.response.body" and not message.get("more_body"):
                        counter.moment("after")

                await app(scope, receive, sent)

            init(self, replying, **kwargs)

        module.GatewayServer.__init__ = made

    return counted


def change(name: str, how: Callable[[Any], None]) -> None:
    """Change a module, now if it is loaded, else when it is."""
    if name in sys.modules:
        how(sys.modules[name])
    else:
        sys.meta_path.insert(0, Finder(name, how))


def role_of_process() -> str:
    """What this process was started as."""
    own = {"core.cli": "owner", "core.workers.worker": "worker"}
    return next((own[name] for name in sys.orig_argv if name in own), "")


def install(own_role: str) -> None:
    """Wait for the wanted moment, if it is one of this role."""
    wanted, done = os.environ.get("CLAW_KILL"), os.environ.get("CLAW_KILL_DONE", "")
    if not wanted or Path(done).exists():
        return
    role, point, when, n = wanted.split("/")
    if role != own_role:
        return
    counter = Counter(when, int(n), done)
    if point == "sync":
        os.fsync, os.fdatasync = counter.around(os.fsync), counter.around(os.fdatasync)
    elif point == "rename":
        os.replace, os.rename = counter.around(os.replace), counter.around(os.rename)
    elif point == "commit":
        change("core.pool.upkeep.loggedtables", commits(counter))
    elif point == "reply":
        change("core.gateway.http.server", replies(counter))
    else:
        raise ValueError(f"no point {point!r}")
