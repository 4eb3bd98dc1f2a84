"""The queue of entries, and its counts by class of priority."""

from __future__ import annotations

import random

from gateway.endpoints.entries import Entry
from gateway.endpoints.entry_queue import EntryQueue
from gateway.trace import BATCH, CRITICAL, DEFAULT, DEFAULT_FLOW, Flow
from tests.simulated import Row


def entry(rank: int = DEFAULT, tenant: str = "", *lengths: int) -> Entry[Row]:
    """An entry with rows of these lengths."""
    made = Entry([Row(length) for length in lengths or (4,)], 60.0)
    made.flow = DEFAULT_FLOW if (rank, tenant) == DEFAULT_FLOW else Flow(rank, tenant)
    return made


def test_counts_match_the_entries_after_random_arrivals_and_removals() -> None:
    """Rows and tokens of each class and of all more important ones."""
    chance = random.Random(1)
    queue: EntryQueue[Row] = EntryQueue()
    for _ in range(300):
        if chance.random() < 0.6:
            queue.add(
                entry(chance.randrange(3), chance.choice(["", "a"]), *[chance.randint(1, 9)] * chance.randint(1, 3))
            )
        elif chance.random() < 0.9:
            queue.remove(chance.sample(queue.entries, min(2, len(queue.entries))))
        elif queue.entries:
            queue.discard(chance.choice(queue.entries))
        for rank in (CRITICAL, DEFAULT, BATCH):
            assert sum(e.count for e in queue.entries if e.flow.rank <= rank) == queue.rows_up_to(rank)
            assert sum(e.tokens for e in queue.entries if e.flow.rank <= rank) == queue.tokens_up_to(rank)


def test_a_queue_is_mixed_when_a_second_flow_arrives() -> None:
    """Entries of one flow leave in the order of their age."""
    queue: EntryQueue[Row] = EntryQueue()
    queue.add(entry(DEFAULT, "a"))
    queue.add(entry(DEFAULT, "a"))
    assert not queue.is_mixed
    queue.add(entry(DEFAULT, "b"))
    assert queue.is_mixed
    queue.clear()
    queue.add(entry(DEFAULT, "b"))
    assert not queue.is_mixed


def test_a_queue_is_batch_only_if_all_of_its_entries_are_of_class_batch() -> None:
    """An empty queue is not batch only."""
    queue: EntryQueue[Row] = EntryQueue()
    assert not queue.is_batch_only
    queue.add(entry(BATCH))
    assert queue.is_batch_only
    other = entry(CRITICAL)
    queue.add(other)
    assert not queue.is_batch_only
    queue.discard(other)
    queue.discard(other)
    assert queue.is_batch_only
    assert queue.entries_by_class() == {"critical": 0, "default": 0, "batch": 1}


def test_retries_are_entries_but_not_counted() -> None:
    """They are not queued again, because each list of retries is the next call."""
    queue: EntryQueue[Row] = EntryQueue()
    queue.retries.append([entry()])
    assert len(list(queue.all_entries())) == 1
    assert (queue.rows, queue.entries) == (0, [])
