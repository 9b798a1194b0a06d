"""SGLang's prefix cache: a radix tree over tokens, or over pages of several tokens.

A path from the root is a prefix. An edge holds as many pages of it as have no branch, and is split
where a request leaves it. Leaves are evicted page by page from their end (SGLang drops a whole
leaf). With pages of one token a request hits all that it has in common with cached content, except
for its last token. A page is named by the prefix id of its last token, so ids need not be aligned
with pages.

Source: Zheng et al. 2024 (SGLang, arXiv 2312.07104), section 3; ``page_size`` there is
``block_size`` here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sim.arrays import Int64
from sim.errors import ScenarioError
from sim.kv.eviction import EvictionOrder, FreeRun, evict, expire
from sim.kv.hybrid import first_blocks
from sim.kv.layout import KVLayout
from sim.kv.prefix_index import Hit, Watchers
from sim.request import Request
from sim.request_table import PrefixChains

_UNBOUNDED = 1 << 60
_GROWS_UP_TO = 1024  # pages of an edge that grows in place: a longer one would be copied too often


class _Edge:
    """Pages of one stretch of prefix, held by all requests whose prefix goes through it."""

    __slots__ = ("born", "children", "holders", "labels", "parent", "run", "tree", "uses")

    def __init__(self, tree: RadixIndex, labels: Int64) -> None:
        self.tree = tree
        self.parent = self
        """The edge above; the root is its own."""
        self.labels = labels
        """One label per page; equal labels in equal places are equal content."""
        self.children: dict[int, _Edge] = {}
        self.holders = 0
        self.run: FreeRun | None = None
        self.uses = 1
        self.born = 0

    def evicted(self, run: FreeRun) -> None:
        """See `sim.kv.eviction.Owner`; no other content continues the run."""
        self.tree.shrink(self, run.stop)

    def goes_before(self, run: FreeRun) -> FreeRun | None:
        """Return the run to evict first; see `sim.kv.eviction.Owner`."""
        return None if self.children else run


class RadixIndex:
    """The `sim.kv.prefix_index.PrefixIndex` of a radix tree."""

    def __init__(
        self,
        order: EvictionOrder,
        chains: PrefixChains | None,
        page_tokens: int,
        layout: KVLayout,
    ) -> None:
        """Raises ScenarioError if a hit needs more than leading pages."""
        if layout.windows or layout.checkpoint_pages:
            raise ScenarioError(
                "a radix tree caches no windows or recurrent states; take kv.prefix_index "
                "block_hash for this model"
            )
        self.watchers = Watchers()
        self._order = order
        self._chains = chains
        self._page_tokens = page_tokens
        self._num_born = 0
        self._clear()

    def _clear(self) -> None:
        self._root = _Edge(self, np.zeros(0, np.int64))
        self._ends: dict[Request, _Edge] = {}  # the pages at which holders end
        self._resident: dict[int, int] = {}  # pages by prefix id, if there is a watcher

    def __bool__(self) -> bool:
        return bool(self._root.children)

    @property
    def free_pages(self) -> int:
        """Pages of cached content that no request holds."""
        return self._order.pages()

    def path(self, request: Request) -> list[tuple[int, int]]:
        """Return (prefix id, pages of it in this request): the shared content, then the private
        rest."""
        if request.nodes is None:
            request.nodes = _named_pages(self._chains, request.index, self._page_tokens)
            request.nodes.append((-1 - request.index - (request.sample << 40), _UNBOUNDED))
        return request.nodes

    def lookup(self, request: Request, limit: int) -> Hit:
        """Find the cached leading pages of a request, at most ``limit``."""
        path = self.path(request)
        pages = evictable = 0
        for edge, matched in self._along(_labels(path, limit)):
            pages += matched
            evictable += 0 if edge.holders else matched
        return Hit(pages, evictable, first_blocks(path, pages))

    def pin(self, request: Request, hit: Hit) -> None:
        """Let a request hold the pages it hit; an edge that it leaves is split there."""
        if not hit.blocks:
            return
        end = self._root
        for edge, matched in self._along(_labels(self.path(request), hit.blocks)):
            end = edge if matched == len(edge.labels) else self._split(edge, matched)
            end.uses += 1
            self._hold(end)
        self._ends[request] = end
        request.pinned.extend(hit.nodes)
        request.pinned_blocks = hit.blocks

    def share(self, request: Request, answer: Request) -> None:
        """Let a further answer hold what the request holds."""
        if request not in self._ends:
            return
        end = self._ends[answer] = self._ends[request]
        for edge in self._up(end):
            edge.holders += 1
        answer.pinned.extend(request.pinned)
        answer.pinned_blocks = request.pinned_blocks

    def register(self, request: Request, full: int, *, shared_only: bool) -> None:
        """Publish the first ``full`` computed pages of a request; see `PrefixIndex.register`."""
        path, had = self.path(request), request.pinned_blocks
        if shared_only:
            full = min(full, sum(pages for _, pages in path[:-1]))
        if full <= had:
            return
        end = self._ends.get(request, self._root)
        new = _labels(path, full)[had:]
        if int(new[0]) in end.children:
            return  # another request computed these pages too; ours stay private
        in_place = end.holders == 1 and not end.children and len(end.labels) < _GROWS_UP_TO
        if in_place:
            end.labels = np.concatenate((end.labels, new))
        else:
            edge = _Edge(self, new)
            edge.parent = end
            self._num_born += 1
            edge.born = self._num_born
            edge.holders = 1
            end.children[int(new[0])] = self._ends[request] = edge
        if self.watchers.on_change or self.watchers.on_evict:
            self._count(new, 1)
        pinned = request.pinned
        start = max(len(pinned) - 1, 0)
        before = had - (pinned[-1][1] if pinned else 0)
        pinned[start:] = first_blocks(path[start:], full - before)
        request.pinned_blocks = full

    def unpin(self, request: Request) -> int:
        """Release all that a request holds; return the number of pages that no request holds
        now."""
        freed = 0
        for edge in self._up(self._ends.pop(request)):
            edge.holders -= 1
            if not edge.holders:
                edge.run = self._order.add(edge, 0, len(edge.labels))
                freed += len(edge.labels)
        return freed

    def released(self, request: Request, full: int) -> None:
        """No content is cached beside leading pages: nothing to do."""

    def evict(self, pages: int) -> int:
        """Evict at least ``pages`` free pages; return how many were evicted."""
        return evict(self._order, pages)

    def expire(self, now_ns: int) -> int:
        """Evict content past its lifetime; it is not written to lower tiers either."""
        told, self.watchers.on_evict = self.watchers.on_evict, ()
        expired = expire(self._order, now_ns)
        self.watchers.on_evict = told
        return expired

    def next_expiry_ns(self) -> int | None:
        """Return when content expires next; None: never."""
        return self._order.next_expiry_ns()

    def lose_all(self) -> None:
        """Forget all content and all holders."""
        gone = [prefix_id for prefix_id in self._resident if prefix_id >= 0]
        self._clear()
        self._order.clear()
        for note in self.watchers.on_change:
            for prefix_id in gone:
                note(prefix_id, 0)

    def common_blocks(self, request: Request, holders: int) -> int:
        """Return the leading pages of a running request that at least ``holders`` requests hold."""
        held = (edge for edge in self._up(self._ends.get(request, self._root)))
        return sum(len(edge.labels) for edge in held if edge.holders >= holders)

    def new_step(self) -> None:
        """No content is cached beside leading pages: nothing to do."""

    def checkpoint(self, request: Request, blocks: int) -> None:
        """No content is cached beside leading pages: nothing to do."""

    def shrink(self, edge: _Edge, pages: int) -> None:
        """Account for the eviction of an edge's tail; its first ``pages`` pages are left."""
        parent, gone = edge.parent, edge.labels[pages:]
        if not pages:
            del parent.children[int(edge.labels[0])]
            if not parent.children:
                self._order.exposed(parent)
        edge.labels = edge.labels[:pages]
        if self._resident:
            self._count(gone, -1)

    def _along(self, labels: Int64) -> Iterator[tuple[_Edge, int]]:
        """Return the edges along ``labels``, each with the number of its pages that agree."""
        edge, at = self._root, 0
        while at < len(labels):
            child = edge.children.get(int(labels[at]))
            if child is None:
                return
            matched = _common(child.labels, labels[at:])
            is_whole = matched == len(child.labels)
            yield child, matched
            if not is_whole:
                return
            edge, at = child, at + matched

    def _split(self, edge: _Edge, pages: int) -> _Edge:
        """Split an edge after ``pages`` pages; returns the new upper part, the lower part stays
        itself."""
        upper, parent = _Edge(self, edge.labels[:pages]), edge.parent
        upper.parent = parent
        parent.children[int(edge.labels[0])] = upper
        edge.labels = edge.labels[pages:]
        edge.parent = upper
        upper.children[int(edge.labels[0])] = edge
        upper.holders, upper.uses, upper.born = edge.holders, edge.uses, edge.born
        if edge.run is not None and not edge.holders:
            edge.run.stop -= pages
        return upper

    def _hold(self, edge: _Edge) -> None:
        edge.holders += 1
        if edge.run is not None:
            self._order.forget(edge.run)
            edge.run = None

    def _up(self, edge: _Edge) -> Iterator[_Edge]:
        """Yield an edge and all edges above it, without the root."""
        while edge is not self._root:
            yield edge
            edge = edge.parent

    def _count(self, labels: Int64, sign: int) -> None:
        """Count pages that came or went by prefix id, and tell the watcher."""
        edges = np.flatnonzero(np.diff(labels)) + 1
        bounds = [0, *edges.tolist(), len(labels)]
        pieces = list(zip(labels[bounds[:-1]].tolist(), np.diff(bounds).tolist(), strict=True))
        for prefix_id, pages in pieces if sign > 0 else reversed(pieces):
            had = self._resident.get(prefix_id, 0)
            left = had + sign * pages
            if left:
                self._resident[prefix_id] = left
            else:
                del self._resident[prefix_id]
            if prefix_id < 0:
                continue
            if sign < 0:
                for tell in self.watchers.on_evict:
                    tell(prefix_id, left, had)
            for note in self.watchers.on_change:
                note(prefix_id, left)


def _common(ours: Int64, theirs: Int64) -> int:
    """Return the length of the common beginning of two sequences."""
    length = min(len(ours), len(theirs))
    differs = ours[:length] != theirs[:length]
    first = int(differs.argmax())
    return first if differs[first] else length


def _labels(path: list[tuple[int, int]], pages: int) -> Int64:
    """Return the labels of the first ``pages`` pages of a path."""
    found = first_blocks(path, pages)
    if not found:
        return np.zeros(0, np.int64)
    ids, sizes = np.array(found, np.int64).T
    return np.repeat(ids, sizes)


def _named_pages(
    chains: PrefixChains | None, index: int, page_tokens: int
) -> list[tuple[int, int]]:
    """Return (prefix id, pages whose last token it names) for a request's whole pages."""
    if chains is None:
        return []
    start, stop = int(chains.offsets[index]), int(chains.offsets[index + 1])
    tokens = min(int(chains.tokens[index]), (stop - start) * chains.block_tokens)
    last_tokens = (np.arange(tokens // page_tokens) + 1) * page_tokens - 1
    positions, pages = np.unique(last_tokens // chains.block_tokens, return_counts=True)
    return list(zip(chains.ids[start + positions].tolist(), pages.tolist(), strict=True))
