"""Evidence: what the reports say about a window, and whether each node's account of it is complete (rule 7).

The states here are what the follower keeps in PostgreSQL: the newest report of each emitter, the newest tally of each
account, the newest value of each lane. Times are epoch ms unless a name says `_s`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lagloss.wire.format import MAX_AHEAD_MS, SAMPLE_ALL, WINDOW_S
from lagloss_server.judging.clock_skew import NO_SKEW, Skew, apart_ms
from lagloss_server.judging.facts import Account
from lagloss_server.judging.freshness import EXPECTED_FOR_MS, SILENT_AFTER_MS
from lagloss_server.model.graph import Graph


@dataclass(frozen=True, slots=True)
class EmitterState:
    """The newest report of one emitter. `disturbed_from_s`: the oldest window whose tally it changed in the 60 s before
    its last report, which is where its silence, if it falls silent, begins to matter. `skew`: how far its clock is and
    was behind the broker's. `resumes`: its host observes again what it had not handed on when
    it died; `inputs`: the lanes of its node's input that it ever reported; `unfinished`: it closed with work in flight.
    """

    emitter: bytes
    node: str
    started_at: int
    sent_at: int
    closed: bool
    final_through_s: int
    appended_at: int
    disturbed_from_s: int
    skew: Skew = NO_SKEW
    resumes: bool = False
    inputs: frozenset[str] = frozenset()
    unfinished: bool = False

    @property
    def ended_ms(self) -> int:
        """When it reported last, or ended if it is closed, by the broker's clock (epoch ms)."""
        return min(self.appended_at, self.sent_at + self.skew.ms) if self.closed else self.appended_at

    @property
    def mourned_ms(self) -> int:
        """When it takes nothing in any more if it is dead (epoch ms, rules 4 and 7)."""
        return self.ended_ms + SILENT_AFTER_MS

    def is_silent(self, now_ms: int) -> bool:
        return not self.closed and now_ms - self.appended_at > SILENT_AFTER_MS

    def is_silent_in(self, window_start_s: int, now_ms: int) -> bool:
        """Return whether its silence leaves this window incomplete for good."""
        return (
            self.is_silent(now_ms)
            and window_start_s >= self.disturbed_from_s
            and window_start_s * 1000 <= self.mourned_ms
        )

    def is_heard_near(self, window_start_s: int) -> bool:
        """Return whether any of its reports, by its own clock or the broker's, may reach into a window that starts
        then."""
        return max(self.appended_at, self.sent_at) + SILENT_AFTER_MS >= window_start_s * 1000


@dataclass(frozen=True, slots=True)
class TallyState:
    """The newest tally of one account for one window."""

    emitter: bytes
    node: str
    checkpoint: str
    replay: str | None
    beacons: int
    dropped: int
    sample: int = SAMPLE_ALL
    id_sum: int = 0
    payload_bytes: int = 0

    @property
    def account(self) -> Account:
        return self.emitter, self.checkpoint, self.replay


@dataclass(frozen=True, slots=True)
class LaneState:
    """The newest value of one lane; `holder` is the emitter whose work in hand it is, None for an ordered input.
    `reporter`: the emitter that reported it."""

    checkpoint: str
    until: int
    holder: bytes | None = None
    name: str = ""
    reporter: bytes = b""


@dataclass(frozen=True, slots=True)
class PlaceProgress:
    """How far a place has come (epoch ms): the minimum over the lanes of the living; and for each dead emitter with
    work in flight how far that had come, and when it took nothing in any more."""

    until: int
    dead: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Evidence:
    """Evidence of reports, definitions and the clock about one window, as of one moment.

    `later_due`: by checkpoint, the start (epoch s) of the newest later window that is due and has a beacon there;
    `changed` the nodes that a new version of the definition makes unsure, in this window or since; `version_changed`
    that there is one; `whole_from`: since when no report is missing that was appended (epoch ms); `seen_until`: by
    node, until when (epoch ms) the taps of this window see all that reaches it, where a version since has others.
    """

    window_start_s: int
    now_ms: int
    emitters: Sequence[EmitterState] = ()
    tallies: Sequence[TallyState] = ()
    lanes: Sequence[LaneState] = ()
    later_due: Mapping[str, int] = field(default_factory=dict)
    changed: frozenset[str] = frozenset()
    version_changed: bool = False
    whole_from: int = 0
    seen_until: Mapping[str, float] = field(default_factory=dict)

    @property
    def window_end_s(self) -> int:
        return self.window_start_s + WINDOW_S

    @property
    def window_end_ms(self) -> int:
        return self.window_end_s * 1000

    @property
    def sample(self) -> int:
        return min((tally.sample for tally in self.tallies), default=SAMPLE_ALL)

    @property
    def nodes(self) -> set[str]:
        """The nodes that account for this window, or should, whatever the definition says of them."""
        return {state.node for state in self.expected()} | {tally.node for tally in self.tallies}

    def expected(self) -> list[EmitterState]:
        """Emitters that should account for this window (rule 7)."""
        tallied = {tally.emitter for tally in self.tallies}
        return [
            state
            for state in self.emitters
            if self._is_expected(state) or (state.emitter in tallied and self.window_end_ms < state.started_at)
        ]

    def _is_expected(self, state: EmitterState) -> bool:
        """Return whether it should account for this window, tally or no tally."""
        if self.window_end_ms < state.started_at:
            return False
        if state.closed:
            return self.window_end_ms <= state.sent_at
        return not self._is_given_up(state)

    def _is_given_up(self, state: EmitterState) -> bool:
        """Return whether it died before this window, and so long ago that it is no longer expected, or all that it took
        in has been taken over."""
        if not state.is_silent(self.now_ms):
            return False
        if self.window_end_ms > state.appended_at + EXPECTED_FOR_MS:
            return True
        if self.window_start_s * 1000 <= state.mourned_ms or self._is_alone(state):
            return False
        # One that died before it reported a lane may have read from any that its node reads.
        return self._is_taken_over(state, state.inputs or self._input_lanes(state.node))

    def _is_alone(self, state: EmitterState) -> bool:
        """Return whether no other process receives again what it alone may have seen: its node reads no lanes, or its
        host commits without waiting for it."""
        into = f"{state.node}.in"
        observes = not state.resumes and any(
            lane.holder == state.emitter and lane.checkpoint == into for lane in self.lanes
        )
        return observes or not self._input_lanes(state.node)

    def _is_taken_over(self, state: EmitterState, inputs: Iterable[str]) -> bool:
        """Return whether each of these input lanes, at least one, is past its end by the report of another."""
        lanes = self._input_lanes(state.node)
        taken = [
            name in lanes and lanes[name].reporter != state.emitter and lanes[name].until > state.mourned_ms
            for name in inputs
        ]
        return bool(taken) and all(taken)

    def _input_lanes(self, node: str) -> dict[str, LaneState]:
        into = f"{node}.in"
        return {lane.name: lane for lane in self.lanes if lane.checkpoint == into and lane.holder is None}

    def is_final(self, state: EmitterState) -> bool:
        return state.final_through_s >= self.window_end_s

    def silent(self) -> list[EmitterState]:
        """Emitters whose silence leaves this window incomplete for good."""
        return [state for state in self.emitters if state.is_silent_in(self.window_start_s, self.now_ms)]

    def _may_be_cut_off(self, state: EmitterState, graph: Graph) -> bool:
        """Return whether a silent emitter may live and receive messages of this window: that alone is no reason at a
        source, where nothing is missing that only it has seen."""
        return (
            state.is_silent(self.now_ms)
            and state.node not in graph.sources
            and state.mourned_ms < self.window_start_s * 1000
            and self.window_end_ms <= state.mourned_ms + graph.definition.spec.max_wait
            and self._is_alone(state)
        )

    def incomplete(self, graph: Graph, read: Mapping[Account, int], quarantined: Iterable[str]) -> frozenset[str]:
        """Return the nodes whose evidence is incomplete in this window, given the beacons read by account (rule 7)."""
        if self.lacks_reports:
            return frozenset(graph.nodes)
        expected = self.expected()
        incomplete = {state.node for state in expected if not self.is_final(state)}
        incomplete |= {tally.node for tally in self.tallies if tally.beacons > read.get(tally.account, 0)}
        incomplete |= {tally.node for tally in self.tallies if tally.dropped > 0}
        incomplete |= set(quarantined) | self.changed
        incomplete |= {state.node for state in self.silent()}
        incomplete |= {state.node for state in self.emitters if self._may_be_cut_off(state, graph)}
        incomplete |= graph.spanned
        for node in self._replaced_within():
            incomplete |= {node, *graph.neighbours(node)} if node in graph.nodes else set()
        accounted = {state.node for state in expected} | {tally.node for tally in self.tallies}
        return frozenset(node for node in graph.nodes if node in incomplete or node not in accounted)

    def _replaced_within(self) -> set[str]:
        """Return the nodes whose taps of an earlier version have seen messages of this window, before it was known to
        be their successors'."""
        start_ms = self.window_start_s * 1000
        ended = {state.emitter for state in self.emitters if state.unfinished and state.sent_at <= start_ms}
        return {tally.node for tally in self.tallies if tally.emitter in ended}

    @property
    def clock_skew_ms(self) -> int:
        """Difference between the clocks of the pipeline's hosts, the broker's among them (rule 4). Emitters count that
        sent a tally for the window, or reported no earlier than a minute before it began: not those that ended long
        ago."""
        tallied = {tally.emitter for tally in self.tallies}
        return apart_ms(
            reading_ms
            for state in self.emitters
            if state.emitter in tallied or state.is_heard_near(self.window_start_s)
            for reading_ms in state.skew.readings_ms(self.window_start_s)
        )

    @property
    def lacks_reports(self) -> bool:
        """Whether reports about this window may be missing (rule 7): later ones of their emitters repeat only tallies
        that changed since. Of a window that starts later, none would have been followed."""
        return self.whole_from > 0 and self.window_start_s * 1000 <= self.whole_from + MAX_AHEAD_MS

    def is_idle(self, sources: Collection[str]) -> bool:
        """Whether every known emitter of each source, and at least one, is final or closed, and none counted a beacon:
        its message is unknown only if its block is away (rule 10)."""
        counted = any(tally.node in sources and tally.beacons + tally.dropped for tally in self.tallies)
        return not counted and not self.lacks_reports and all(map(self._is_through, sources))

    def _has_closed(self, state: EmitterState) -> bool:
        """Return whether it closed, and in good order or before this window ended: one that is replaced goes on."""
        return state.closed and (not state.unfinished or state.sent_at < self.window_end_ms)

    def _is_through(self, source: str) -> bool:
        states = [state for state in self.emitters if state.node == source and not self._is_given_up(state)]
        return bool(states) and all(self.is_final(state) or self._has_closed(state) for state in states)

    def progress(self, checkpoint: str) -> PlaceProgress | None:
        """Return how far the lanes of a place's checkpoint have come (rule 4); None where no emitter reported any."""
        lanes = [lane for lane in self.lanes if lane.checkpoint == checkpoint]
        if not lanes:
            return None
        states = {state.emitter: state for state in self.emitters}
        living, dead = [], []
        for lane in lanes:
            holder = None if lane.holder is None else states.get(lane.holder)
            if holder is None or not (holder.closed or holder.is_silent(self.now_ms)):
                living.append(lane.until)
            elif self._leaves_work(holder):
                dead.append((lane.until, holder.ended_ms if holder.closed else holder.mourned_ms))
        return PlaceProgress(min(living, default=self.now_ms), tuple(dead))

    def _leaves_work(self, dead: EmitterState) -> bool:
        """Return whether its work in flight may still be so: it has not closed in good order, and no other process has
        taken that work over."""
        if dead.closed and not dead.unfinished:
            return False
        return not (dead.resumes and self._is_taken_over(dead, self._input_lanes(dead.node)))


def changed_nodes(before: Graph, after: Graph) -> frozenset[str]:
    """Nodes that are not the same in both versions, and their neighbours in either (rule 7)."""
    nodes = {*before.nodes, *after.nodes}
    differing = {node for node in nodes if not before.same_node(after, node)}
    around = {
        near
        for graph in (before, after)
        for node in graph.nodes
        if node in differing
        for near in graph.neighbours(node)
    }
    return frozenset(differing | around)
