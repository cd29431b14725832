"""A Ray cluster that is played in one process: what our code asks of Ray, and workers that die."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace


class WorkerDiedError(Exception):
    """Stands for `ray.exceptions.RayActorError`."""


@dataclass(frozen=True, eq=False)
class Task:
    """A call whose result can be asked for."""

    handle: Handle
    name: str
    given: tuple


class Handle:
    """A worker, as Ray hands it out: its methods return tasks."""

    def __init__(self, actor):
        self.actor = actor

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *given: Task(self, name, given))


class Cluster:
    """Runs a task when its result is asked for.

    Args:
        deadly: Says of what a task is given whether its worker dies over it.
    """

    exceptions = SimpleNamespace(RayActorError=WorkerDiedError)

    def __init__(self, deadly: Callable[..., bool] = lambda *given: False):
        self.deadly = deadly
        self.alive: list[Handle] = []
        self.resources: list[dict[str, float]] = []  # of each worker that was made
        self.running = True

    def remote(self, **resources):
        def made(kind, *given):
            self.resources.append(resources)
            self.alive.append(Handle(kind(*given)))
            return self.alive[-1]

        return lambda kind: SimpleNamespace(remote=lambda *given: made(kind, *given))

    def wait(self, tasks, num_returns):
        assert num_returns == 1
        return tasks[-1:], tasks[:-1]

    def get(self, task):
        if isinstance(task, list):
            return [self.get(one) for one in task]
        assert task.handle in self.alive
        if self.deadly(*task.given):
            self.alive.remove(task.handle)
            raise WorkerDiedError("killed")
        return getattr(task.handle.actor, task.name)(*task.given)

    def kill(self, handle):
        self.alive.remove(handle)

    def shutdown(self):
        self.running = False
