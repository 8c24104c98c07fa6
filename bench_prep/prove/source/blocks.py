"""KV blocks as vLLM's scheduler hands them out: shared by requests with a common prefix."""

from __future__ import annotations

from collections import Counter
from typing import Any

#: vLLM's null block: stands where a request has no block of its own any more.
NULL_BLOCK = 0
_BLOCKS = 4000

Blocks = list[list[int]]


class BlockPool:
    """One pool for all KV groups: attention groups with `block_sizes` tokens per block, then
    `state_groups` groups with one block per request."""

    def __init__(self, block_sizes: tuple[int, ...], state_groups: int, rng: Any) -> None:
        self.block_sizes = block_sizes
        self.state_groups = state_groups
        # In no order, so that a wrong block is a wrong slot.
        self._free: list[int] = rng.permutation(range(NULL_BLOCK + 1, _BLOCKS)).tolist()
        self._users: Counter[int] = Counter()

    def none(self) -> Blocks:
        """The blocks of a request that has none: an empty list per group."""
        return [[] for _ in range(len(self.block_sizes) + self.state_groups)]

    def extend(self, blocks: Blocks, tokens: int) -> Blocks:
        """Give a request the blocks for its first `tokens` tokens; returns the added ones."""
        wanted = [-(-tokens // size) for size in self.block_sizes] + [1] * self.state_groups
        added = []
        for group, count in zip(blocks, wanted, strict=True):
            new = [self._free.pop() for _ in range(count - len(group))]
            self._users.update(new)
            group.extend(new)
            added.append(new)
        return added

    def share(self, blocks: Blocks, tokens: int, window: int | None = None) -> Blocks:
        """Share a prefix of `tokens` tokens: whole blocks in every attention group.

        With `window` the blocks of the last group with slots that lie wholly before the last
        `window` tokens are null blocks, as for sliding-window attention.
        """
        shared = [group[: tokens // s] for group, s in zip(blocks, self.block_sizes, strict=False)]
        if window is not None:
            gone = max(0, tokens - window) // self.block_sizes[-1]
            shared[-1][:gone] = [NULL_BLOCK] * gone
        for group in shared:
            self._users.update(b for b in group if b != NULL_BLOCK)
        return shared + [[] for _ in range(self.state_groups)]

    def release(self, blocks: Blocks) -> None:
        """A request gives its blocks back; those that nobody else uses are free again."""
        for group in blocks:
            for block in group:
                if block == NULL_BLOCK:
                    continue
                self._users[block] -= 1
                if not self._users[block]:
                    del self._users[block]
                    self._free.append(block)

    def is_full(self, blocks: Blocks, max_model_len: int) -> bool:
        """Whether an attention group's row of the block table has no room left."""
        return any(
            len(group) == -(-max_model_len // size)
            for group, size in zip(blocks, self.block_sizes, strict=False)
        )
