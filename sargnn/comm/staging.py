"""Messages of tensors on a GPU over a transport that carries the host's memory only, such as gloo.

What is sent is copied into pinned memory first. A thread posts its message once the copy is done, so that whoever computes does
not wait for the GPU; from the first such message on all go through this thread, in order. What comes is received into pinned
memory, and copied to the GPU when it is waited for. Copies run on streams of their own: events order them behind what the
tensor was used for before, and before what it is used for next.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sargnn.comm.group import Work, bytes_of

Post = Callable[[Tensor], Work]
"""Starts a transfer of bytes in the host's memory."""


class Copies(Protocol):
    """Copies between a device's memory and the host's."""

    def stages(self, tensor: Tensor) -> bool:
        """Whether the tensor's memory is one that the transport cannot carry."""

    def down(self, tensor: Tensor) -> tuple[Tensor, Callable[[], object]]:
        """Start copying a tensor, uint8 [B] on the device, which stays as it is until then: the copy, and what waits for it."""

    def room(self, tensor: Tensor) -> tuple[Tensor, Callable[[], object]]:
        """Where bytes for a tensor, uint8 [B] on the device, arrive, and what starts copying them there once all has come.

        Whatever was to be done with what the tensor holds has been given to the device.
        """


class GpuCopies:
    """Between GPU memory and pinned memory, on a stream for each direction. The host waits for no copy to the GPU."""

    def __init__(self) -> None:
        self._streams: dict[tuple[torch.device, str], torch.cuda.Stream] = {}

    def stages(self, tensor: Tensor) -> bool:
        return tensor.is_cuda

    def down(self, tensor: Tensor) -> tuple[Tensor, Callable[[], object]]:
        host, stream = self._pinned(tensor), self._stream(tensor.device, "down")
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        done = torch.cuda.Event(blocking=True)
        with torch.cuda.stream(stream):
            host.copy_(tensor, non_blocking=True)
            done.record()
        return host, done.synchronize

    def room(self, tensor: Tensor) -> tuple[Tensor, Callable[[], object]]:
        host, stream = self._pinned(tensor), self._stream(tensor.device, "up")
        free = torch.cuda.current_stream(tensor.device).record_event()

        def up() -> None:
            stream.wait_event(free)
            with torch.cuda.stream(stream):
                tensor.copy_(host, non_blocking=True)
            torch.cuda.current_stream(tensor.device).wait_stream(stream)

        return host, up

    def _pinned(self, tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

    def _stream(self, device: torch.device, direction: str) -> torch.cuda.Stream:
        if (device, direction) not in self._streams:
            self._streams[device, direction] = torch.cuda.Stream(device)
        return self._streams[device, direction]


@dataclass(eq=False)
class _Sending:
    """A message that the thread posts. It holds the tensor until the message is sent."""

    posted: Future[Work]
    tensor: Tensor

    def wait(self) -> None:
        self.posted.result().wait()


@dataclass(eq=False)
class _Arriving:
    work: Work
    up: Callable[[], object]

    def wait(self) -> None:
        self.work.wait()
        self.up()


class Staging:
    """Posts messages, those of a device's tensors by way of the host."""

    def __init__(self, copies: Copies | None = None) -> None:
        self._copies = copies or GpuCopies()
        self._thread: ThreadPoolExecutor | None = None

    def send(self, tensor: Tensor, post: Post) -> Work:
        """Start sending. What ``post`` raises is raised when the work is waited for, where it is staged."""
        flat = bytes_of(tensor)
        if self._copies.stages(flat):
            host, wait = self._copies.down(flat)
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "staging")
        elif self._thread is None:
            return post(flat)
        else:
            host, wait = flat, _nothing

        def post_copy() -> Work:
            wait()
            return post(host)

        return _Sending(self._thread.submit(post_copy), tensor)

    def receive(self, tensor: Tensor, post: Post) -> Work:
        flat = bytes_of(tensor)
        if not self._copies.stages(flat):
            return post(flat)
        host, up = self._copies.room(flat)
        return _Arriving(post(host), up)

    def close(self) -> None:
        """End the thread, after all that it has still to post."""
        if self._thread is not None:
            self._thread.shutdown()


def _nothing(*arguments: Any) -> None:
    """What waits for nothing."""
