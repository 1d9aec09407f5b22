"""Requests that wait while others are predicted are predicted together: one thread predicts, the event loop goes on."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class BusyError(RuntimeError):
    """More rows wait than can be answered soon."""


class Together(Generic[Question, Answer]):
    """Batches without a pause: whatever has come while the last batch was computed is the next one.

    A single request is computed at once; the more come at the same time, the larger the batches.

    Args:
        work: the answers to some questions, or why there is none; called in a thread of its own.
        most: rows in a batch, unless a single question has more.
        most_waiting: rows that may wait; beyond it questions are refused.
    """

    def __init__(
        self, work: Callable[[Sequence[Question]], Sequence[Answer | Exception]], most: int, most_waiting: int
    ):
        self._work, self._most, self._most_waiting = work, most, most_waiting
        self._waiting: asyncio.Queue[tuple[Question, int, asyncio.Future[Answer]]] = asyncio.Queue()
        self._rows = 0

    async def ask(self, question: Question, rows: int) -> Answer:
        """The answer to a question with so many rows.

        Raises:
            BusyError: too many rows wait already.
        """
        if self._rows and self._rows + rows > self._most_waiting:
            raise BusyError(f"{self._rows} rows are waiting; try again later")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._rows += rows
        self._waiting.put_nowait((question, rows, future))
        return await future

    async def answer(self) -> None:
        """Answer until cancelled."""
        with ThreadPoolExecutor(1, "predict") as thread:
            while True:
                batch = [await self._waiting.get()]
                while not self._waiting.empty() and sum(rows for _, rows, _ in batch) < self._most:
                    batch.append(self._waiting.get_nowait())
                questions = [question for question, _, _ in batch]
                found = await asyncio.get_running_loop().run_in_executor(thread, self._work, questions)
                for (_, rows, future), answer in zip(batch, found, strict=True):
                    self._rows -= rows
                    if future.done():  # whoever asked has gone
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
