"""Which episode, line and branch a call belongs to, by the name that the client gave or by the conversation that it extends.

An episode has lines: one agent's calls, one after the other. A call that extends its line's last answer goes on in it. One that extends an
earlier answer begins a line of its own, so that what is tried twice or in parallel stays apart. One of a named episode that extends nothing
is the same agent with a rewritten context where its system prompt and tools are an idle line's, and a sub-agent otherwise.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from agent.gateway.records import Call, Outcome, Place, episode_of
from warehouse.core.errors import RequestRefused


@dataclass(slots=True)
class _Node:
    """A recorded call. `digests`: of the conversation after each of its messages, the answer the last."""

    call_id: str
    place: Place
    digests: tuple[str, ...]
    is_extended: bool = False


@dataclass(slots=True)
class _Line:
    number: int
    agent: str
    last: str | None = None
    branch: int = 0
    num_running: int = 0
    digests: tuple[str, ...] = ()


@dataclass(slots=True)
class Group:
    """One episode. `is_candidate`: whether a canary's candidate answers it; None before its first call."""

    episode: str
    project: str
    name: str | None
    lines: list[_Line] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    outcome: Outcome | None = None
    num_running: int = 0
    is_candidate: bool | None = None
    policy_id: str | None = None
    withheld: tuple[str, ...] = ()


class Grouping:
    """All episodes that are open, and which have ended. Lives in one event loop or thread; nothing here waits."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._nodes: dict[str, _Node] = {}
        self._after: dict[tuple[str, str], list[str]] = {}
        """Calls by project and the digest of the conversation after their answer."""

    def begin(self, project: str, name: str | None, agent: str, found: Sequence[str]) -> Place:
        """Where a call belongs whose conversation has the digests `found`. Give it to `end` or `give_up`. Raises RequestRefused for a
        named episode that has its outcome."""
        named = None if name is None else self.find(project, name) or self._add(Group(episode_of(project, name), project, name))
        parent = self._parent(project, named, found)
        if named is not None:
            group = named
        elif parent is not None:
            group = self._groups[parent.place.episode]
        else:
            group = self._add(Group(f"gateway-{secrets.token_hex(8)}", project, None))
        if group.outcome is not None:
            raise RequestRefused(
                f"the episode {name or group.episode!r} has its outcome: name the next one otherwise", "X-Flywheel-Episode"
            )
        place = self._extend(group, parent, agent) if parent is not None else self._without_parent(group, agent, found)
        group.num_running += 1
        group.lines[place.line].num_running += 1
        return place

    def _parent(self, project: str, named: Group | None, found: Sequence[str]) -> _Node | None:
        """The call whose messages and answer are the longest beginning of the conversation; of several the newest that nothing extends."""
        for digest in reversed(found):
            nodes = [self._nodes[call_id] for call_id in self._after.get((project, digest), ())]
            nodes = [node for node in nodes if named is None or node.place.episode == named.episode]
            if nodes:
                return next((node for node in reversed(nodes) if not node.is_extended), nodes[-1])
        return None

    def _add(self, group: Group) -> Group:
        self._groups[group.episode] = group
        return group

    def _extend(self, group: Group, parent: _Node, agent: str) -> Place:
        line = group.lines[parent.place.line]
        if line.last == parent.call_id and not parent.is_extended and not line.num_running:
            parent.is_extended = True
            return Place(episode=group.episode, line=line.number, branch=line.branch, parent=parent.call_id, started="continued")
        parent.is_extended = True
        return Place(episode=group.episode, line=self._line(group, agent).number, parent=parent.call_id, started="beside")

    def _without_parent(self, group: Group, agent: str, found: Sequence[str]) -> Place:
        idle = [line for line in group.lines if line.agent == agent and not line.num_running]
        if idle:
            line = max(idle, key=lambda one: (_num_shared(one.digests, found), one.number))
            if line.last is None:  # its first call was given up
                return Place(episode=group.episode, line=line.number, started="separate" if line.number else "first")
            line.branch += 1
            return Place(episode=group.episode, line=line.number, branch=line.branch, started="rewritten")
        line = self._line(group, agent)
        return Place(episode=group.episode, line=line.number, started="separate" if line.number else "first")

    def _line(self, group: Group, agent: str) -> _Line:
        line = _Line(len(group.lines), agent)
        group.lines.append(line)
        return line

    def beside(self, place: Place, agent: str) -> Place:
        """A line of its own for a further answer to the same call."""
        line = self._line(self._groups[place.episode], agent)
        return Place(episode=place.episode, line=line.number, parent=place.parent, started="beside")

    def group(self, episode: str) -> Group:
        return self._groups[episode]

    def num_before(self, place: Place) -> int:
        """Messages of the conversation that a call's parent holds, its answer included."""
        return len(self._conversation(place.parent))

    def _conversation(self, call_id: str | None) -> tuple[str, ...]:
        parts: list[tuple[str, ...]] = []
        while call_id is not None:
            node = self._nodes[call_id]
            parts.append(node.digests)
            call_id = node.place.parent
        return tuple(digest for part in reversed(parts) for digest in part)

    def end(self, place: Place, calls: Sequence[Call]) -> None:
        """The call was recorded, once for each answer."""
        self._leave(place)
        for call in calls:
            self.add(call)

    def give_up(self, place: Place) -> None:
        """The call was not answered: the next may extend the same answer."""
        self._leave(place)
        group = self._groups[place.episode]
        if place.started == "continued" and place.parent is not None and group.lines[place.line].last == place.parent:
            self._nodes[place.parent].is_extended = False
        if not group.calls and not group.num_running and group.name is None:
            del self._groups[place.episode]

    def _leave(self, place: Place) -> None:
        group = self._groups[place.episode]
        group.num_running -= 1
        group.lines[place.line].num_running -= 1

    def add(self, call: Call) -> None:
        """Enter a recorded call, of the log or just made."""
        place = call.place
        group = self._groups.get(place.episode) or self._add(Group(place.episode, call.project, call.name))
        while len(group.lines) <= place.line:
            self._line(group, call.agent)
        line = group.lines[place.line]
        group.calls.append(call.call_id)
        group.is_candidate, group.policy_id = call.is_candidate, group.policy_id or call.policy_id
        group.withheld = group.withheld or call.withheld
        if place.parent is not None:
            self._nodes[place.parent].is_extended = True
        self._nodes[call.call_id] = _Node(call.call_id, place, call.digests)
        line.agent, line.last, line.branch = call.agent, call.call_id, max(line.branch, place.branch)
        line.digests = self._conversation(call.call_id)
        self._after.setdefault((call.project, call.digests[-1]), []).append(call.call_id)

    def close(self, outcome: Outcome) -> None:
        """Enter an outcome: nothing extends the episode's calls any more."""
        group = self._groups[outcome.episode]
        group.outcome = outcome
        for call_id in group.calls:
            node = self._nodes.pop(call_id)
            key = (group.project, node.digests[-1])
            left = [one for one in self._after.get(key, ()) if one != call_id]
            if left:
                self._after[key] = left
            else:
                self._after.pop(key, None)
        group.lines.clear()

    def find(self, project: str, name: str) -> Group | None:
        """A project's episode, by its id or by the name that its client gave."""
        group = self._groups.get(name)
        return group if group is not None and group.project == project else self._groups.get(episode_of(project, name))

    def of_project(self, project: str) -> list[Group]:
        return [group for group in self._groups.values() if group.project == project]


def _num_shared(one: Sequence[str], other: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
