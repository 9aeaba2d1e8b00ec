"""google-jetstream's gRPC server: its service and its server class, on drivers of its orchestrator.

The message `DecodeRequest` has no sampling settings and no seed, so all requests are greedy. `token_content` is taken
as it is; `text_content` is one user turn of a new conversation in the checkpoint's chat format, and whatever it holds,
it yields no control id. Answers carry the ids, the one that ended the reply included; answers to text also the text,
without that one. How a reply ended is in the call's trailing metadata: `finish-reason` ("stop" or "length") and
`weight-version`.

The package's rough edges that show here:

- it listens on every interface, and does not say on which port if asked for any: both are settled here;
- it cuts prompts that are too long from the left, without a word: they are refused;
- `max_tokens` 0, which a client that leaves it out sends, ends a reply at once: it stands for "no limit of its own";
- a call that the client gave up is computed to its end: here it frees its slot;
- its queue has no bound: past `max_waiting` calls are refused as RESOURCE_EXHAUSTED, to be tried again;
- it ends text pieces in the middle of a character: see `text.TextStream`;
- `session_cache` and `priority` are in the message and do nothing: refused, rather than read and ignored;
- it says that it is live after one of its threads has died: `HealthCheck` asks the drivers;
- stopping waits for calls that nobody will answer, and leaves its event loop open: they are released first.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import grpc

from whale_jax.qwen3_5.chat import Piece
from whale_jax.serving.driver import ContextOverflow, DriverStopped, Sampling, ServingError
from whale_jax.serving.jetstream_driver import JetStreamDriver, Reply
from whale_jax.serving.jetstream_package import jetstream_pb2_grpc, messages, server_lib
from whale_jax.serving.text import ByteDecoder, TextStream

FINISH_REASON, WEIGHT_VERSION = "finish-reason", "weight-version"
_GREEDY = Sampling(temperature=0.0)
_STATUS = {
    ContextOverflow: grpc.StatusCode.INVALID_ARGUMENT,
    DriverStopped: grpc.StatusCode.UNAVAILABLE,
    ServingError: grpc.StatusCode.INTERNAL,
    ValueError: grpc.StatusCode.INVALID_ARGUMENT,
}

T = TypeVar("T")


class Codec(ByteDecoder, Protocol):
    """What the server needs of `qwen3_5.chat.ChatCodec`."""

    @property
    def stop_ids(self) -> tuple[int, ...]: ...
    def start(self, system: str | None, tools: Sequence[Any], thinking: bool, /) -> list[Piece]: ...
    def user(self, text: str, /) -> list[int]: ...
    def generation_prompt(self, thinking: bool, /) -> list[int]: ...


class Servicer(jetstream_pb2_grpc.OrchestratorServicer):
    """The package's service on drivers that each hold an engine; a call goes to the one with the fewest in flight."""

    def __init__(
        self, drivers: Sequence[JetStreamDriver], codec: Codec, *, max_in_flight: int, thinking: bool = True
    ) -> None:
        """Args:
        drivers: started and stopped by the caller.
        max_in_flight: calls that one driver accepts at a time, waiting ones included.
        thinking: whether the reply to a text begins inside a think block.
        """
        self._drivers = list(drivers)
        self._codec = codec
        self._max_in_flight = max_in_flight
        self._thinking = thinking

    async def HealthCheck(self, request: Any, context: Any) -> Any:
        """Live while every engine accepts requests."""
        return messages.HealthCheckResponse(is_live=all(driver.live for driver in self._drivers))

    async def Decode(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Streams one greedy reply."""
        driver = min(self._drivers, key=lambda driver: driver.in_flight)
        if driver.in_flight >= self._max_in_flight:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self._max_in_flight} requests are in flight: try again later"
            )
        try:
            reply = self._submit(driver, request)
        except (ValueError, ServingError) as error:
            await _abort(context, error)
            raise
        context.add_done_callback(lambda _: driver.cancel(reply))
        stream = TextStream(self._codec) if request.WhichOneof("content") == "text_content" else None
        try:
            async for ids in reply:
                if ids:
                    yield _response(
                        ids, stream and stream.push([one for one in ids if one not in self._codec.stop_ids])
                    )
            generation = reply.generation()
        except ServingError as error:
            await _abort(context, error)
            raise
        if stream and (rest := stream.finish()):
            yield _response([], rest)
        context.set_trailing_metadata(
            ((FINISH_REASON, generation.finish), (WEIGHT_VERSION, str(generation.weight_version)))
        )

    def _submit(self, driver: JetStreamDriver, request: Any) -> Reply:
        if request.session_cache or request.priority:
            raise ValueError(
                "session_cache and priority are not supported: send the whole conversation; "
                "what it shares with earlier ones is computed once"
            )
        if request.max_tokens < 0:
            raise ValueError(f"max_tokens must be >= 0 (0: no limit but the context), got {request.max_tokens}")
        content = request.WhichOneof("content")
        if content is None:
            raise ValueError("content is empty: send text_content or token_content")
        if content == "text_content":
            ids = self._prompt(request.text_content.text)
        else:
            ids = list(request.token_content.token_ids)
        limit = request.max_tokens or 2**31 - 1  # bounded by the room that is left
        return driver.submit(driver.open(), ids, max_tokens=limit, sampling=_GREEDY, key=(0, 0))

    def _prompt(self, text: str) -> list[int]:
        head = [token for piece in self._codec.start(None, (), self._thinking) for token in piece.ids]
        return [*head, *self._codec.user(text), *self._codec.generation_prompt(self._thinking)]


class Server(server_lib.JetStreamServer):
    """The package's server, on an address of one's own choice."""

    _grpc_server: grpc.aio.Server

    def __init__(self, servicer: Servicer, *, stop: Callable[[], None], host: str = "127.0.0.1", port: int = 0) -> None:
        """Binds the address; `start` accepts calls.

        Args:
          servicer: answers calls.
          stop: stops the drivers, and so releases the calls that wait for them.
          host: an interface's address or name.
          port: 0 for any free one, see `port`.

        Raises:
          RuntimeError: the address cannot be bound.
        """
        self._stop_drivers = stop
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="jetstream-grpc")
        self._loop = asyncio.new_event_loop()
        self._loop_thread = threading.Thread(target=self._loop.run_forever, name="jetstream-grpc", daemon=True)
        self._loop_thread.start()

        async def build() -> int:
            # By default two servers may share a port, and each gets some of the calls.
            self._grpc_server = grpc.aio.server(self._executor, options=[("grpc.so_reuseport", 0)])
            jetstream_pb2_grpc.add_OrchestratorServicer_to_server(servicer, self._grpc_server)
            return self._grpc_server.add_insecure_port(f"{host}:{port}")

        try:
            self.port = self._run(build())
        except RuntimeError:
            self._end_loop()
            raise

    def stop(self) -> None:
        """Ends all calls and the server's threads."""
        self._stop_drivers()
        self._run(self._grpc_server.stop(grace=1))
        self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop_thread.join()
        self._loop.close()
        self._executor.shutdown()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _response(ids: Sequence[int], text: str | None) -> Any:
    sample = messages.DecodeResponse.StreamContent.Sample(token_ids=ids, text=text or "")
    return messages.DecodeResponse(stream_content=messages.DecodeResponse.StreamContent(samples=[sample]))


async def _abort(context: Any, error: Exception) -> None:
    status = next(status for kind, status in _STATUS.items() if isinstance(error, kind))
    await context.abort(status, str(error))
