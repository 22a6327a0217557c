"""Batches across requests: the same answers as without, in fewer runs, and Serving's errors."""

import gc
import json
import random
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.protobuf import meta_graph_pb2

from bertfam_serve import running_server
from bertfam_serve.batching import Batcher, BatchingParameters, read_parameters
from bertfam_tf.export.runtime import Code, ServingError, load

MESSAGE_OF_MIXED_SHAPES = "different tasks have different shapes and padding is turned off"


def definition(inputs, outputs):
    signature = meta_graph_pb2.SignatureDef()
    for group, dtypes in ((signature.inputs, inputs), (signature.outputs, outputs)):
        for name, dtype in dtypes.items():
            group[name].name = f"{name}:0"
            group[name].dtype = tf.as_dtype(dtype).as_datatype_enum
    return signature


class Recorder:
    """A servable in NumPy: the answer to an example depends on that example alone."""

    def __init__(self):
        self.signatures = {
            "serving_default": definition({"x": "float32"}, {"y": "float32", "row": "float32"}),
            "texts": definition({"a": "string", "b": "string"}, {"joined": "string"}),
        }
        self.model = "recorder"
        self.runs = []
        self.gate = threading.Event()
        self.gate.set()

    def run(self, signature, inputs, *, outputs=(), timeout_ms=0):
        found = self._all(signature or "serving_default", inputs, timeout_ms)
        if len(set(outputs)) < len(outputs):
            raise KeyError
        return {name: found[name] for name in outputs} if outputs else found

    def _all(self, signature, inputs, timeout_ms):
        if signature not in self.signatures:
            raise ServingError(Code.FAILED_PRECONDITION, f"no {signature}")
        self.runs.append((signature, {k: np.copy(v) for k, v in inputs.items()}, timeout_ms))
        self.gate.wait(30)
        if signature == "texts":
            joined = [a + b"|" + b for a, b in zip(inputs["a"], inputs["b"], strict=True)]
            return {"joined": np.array([*joined, None], object)[:-1]}
        x = np.asarray(inputs["x"])
        if (x == 666).any():
            raise ServingError(Code.INVALID_ARGUMENT, "assertion failed: 666")
        if (x == 0.25).any():
            return {"y": np.float32(1), "row": x}
        if (x == 0.75).any():
            return {"y": x[1:], "row": x}
        return {"y": 2 * x, "row": x.sum(axis=tuple(range(1, x.ndim)))}

    def sizes(self):
        return [len(next(iter(inputs.values()))) for _, inputs, _ in self.runs]


def texts(*items):
    return np.array([*items, None], object)[:-1]


def floats(*rows):
    return {"x": np.array(rows, np.float32)}


def same(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
        assert found[name].dtype == expected[name].dtype


class Held:
    """Requests that reach one batcher in a known order while its only thread is held up."""

    def __init__(self, servable, batched):
        self._servable, self._batched = servable, batched
        self._pool = ThreadPoolExecutor(32)
        servable.gate.clear()
        self.futures = [self.start("", floats(-1))]
        while not servable.runs:
            time.sleep(0.001)
        servable.runs.clear()

    def start(self, signature, inputs, **options):
        return self._pool.submit(self._batched.run, signature, inputs, **options)

    def send(self, signature, inputs, **options):
        queued = sum(map(waiting, self._batched._queues.values()))
        future = self.start(signature, inputs, **options)
        while sum(map(waiting, self._batched._queues.values())) == queued and not future.done():
            time.sleep(0.001)
        self.futures.append(future)
        return future

    def release(self):
        self._servable.gate.set()
        for future in self.futures:
            future.exception(30)
        self._pool.shutdown()


def waiting(queue):
    return sum(len(batch.tasks) for batch in queue._batches)


@pytest.fixture
def servable():
    return Recorder()


@pytest.fixture
def batch(servable):
    """Wraps the servable with a batcher, of one thread by default."""
    batchers = []

    def wrap(**parameters):
        batchers.append(Batcher(BatchingParameters(**{"num_batch_threads": 1} | parameters)))
        return batchers[-1](servable)

    yield wrap
    servable.gate.set()
    for batcher in batchers:
        batcher.close()


# ------------------------------------------------------------------------------- the same answers


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    parameters=st.sampled_from(
        [
            {"max_batch_size": 8},
            {"max_batch_size": 8, "allowed_batch_sizes": (2, 5, 8), "num_batch_threads": 3},
            {"max_batch_size": 8, "batch_timeout_micros": 2000, "num_batch_threads": 2},
            {
                "max_batch_size": 64,
                "enable_large_batch_splitting": True,
                "max_execution_batch_size": 3,
            },
            {
                "max_batch_size": 64,
                "allowed_batch_sizes": (1, 4, 64),
                "enable_large_batch_splitting": True,
                "max_execution_batch_size": 4,
                "num_batch_threads": 2,
            },
            {"max_batch_size": 1},
        ]
    ),
)
def test_interleaved_requests_get_the_answers_of_requests_alone(seed, parameters):
    generator = random.Random(seed)
    servable, alone = Recorder(), Recorder()
    largest = 20 if parameters.get("enable_large_batch_splitting") else parameters["max_batch_size"]
    requests = []
    for i in range(40):
        size = generator.randint(0, largest)
        if generator.random() < 0.5:
            values = [[generator.random() + 1, i] for _ in range(size)]
            inputs = {"x": np.array(values, np.float32).reshape(size, 2)}
            chosen = generator.choice([[], ["y"], ["row"], ["row", "y"], ["y", "row"]])
            options = {"outputs": chosen}
            requests.append(("", inputs, options))
        else:
            rows = [f"{i}.{j}".encode() for j in range(size)]
            inputs = {"a": texts(*rows), "b": texts(*reversed(rows))}
            requests.append(("texts", inputs, {}))
    with Batcher(BatchingParameters(max_enqueued_batches=10_000, **parameters)) as batcher:
        batched = batcher(servable)

        def ask(request):
            signature, inputs, options = request
            time.sleep(generator.random() / 500)
            return batched.run(signature, inputs, timeout_ms=60_000, **options)

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, requests))
    for (signature, inputs, options), answer in zip(requests, answers, strict=True):
        same(answer, alone.run(signature, inputs, **options))
    limit = BatchingParameters(**parameters).rows_executed
    assert all(size <= limit for size in servable.sizes())
    allowed = parameters.get("allowed_batch_sizes")
    assert not allowed or set(servable.sizes()) <= {0, *allowed}


def test_a_savedmodel_in_batches(base_path):
    servable = load(base_path / "00000123")
    with Batcher(BatchingParameters(max_batch_size=16, batch_timeout_micros=3000)) as batcher:
        batched = batcher(servable)

        def ask(i):
            words = [f"{'word ' * (i % 5)}é{j}".encode() for j in range(i % 4 + 1)]
            inputs = {"text": texts(*words)}
            sent = (
                {k: tf.make_tensor_proto(list(v)) for k, v in inputs.items()} if i % 2 else inputs
            )
            return batched.run("tokens", sent), servable.run("tokens", inputs)

        with ThreadPoolExecutor(8) as pool:
            for found, expected in pool.map(ask, range(60)):
                same(found, expected)


@pytest.fixture(scope="module")
def rest(base_path):
    """A client of a server with one batch thread; `rows` has the size of each batch that ran."""
    rows = []

    def wrap(servable):
        run = servable.run
        servable.run = lambda signature, inputs, **options: (
            rows.append(len(next(iter(inputs.values())))) or run(signature, inputs, **options)
        )
        return batcher(servable)

    parameters = BatchingParameters(
        max_batch_size=2000, num_batch_threads=1, batch_timeout_micros=20_000
    )
    with (
        Batcher(parameters) as batcher,
        running_server(base_path, model_name="zoo", wrap=wrap, timeout_s=2) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        client.rows = rows
        yield client


def ask(client, signature, **body):
    body = {"signature_name": signature, **body}
    return client.post("/v1/models/zoo:predict", content=json.dumps(body))


@pytest.mark.parametrize(
    "texts",
    [
        lambda i: ["a " * i] * (i % 3 + 1),  # decoded and encoded in the event loop
        lambda i: ["a " * i, "a" * 4096],  # a body for a thread
        lambda i: [""] * (342 + i),  # an answer for a thread: 3 outputs
    ],
)
def test_batches_over_rest(rest, client, texts):
    del rest.rows[:]
    bodies = [texts(i) for i in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda body: ask(rest, "tokens", instances=body), bodies))
    assert sum(rest.rows) == sum(map(len, bodies))
    assert len(rest.rows) < len(bodies)
    for body, answer in zip(bodies, found, strict=True):
        assert answer.status_code == 200
        assert answer.content == ask(client, "tokens", instances=body).content


@pytest.mark.parametrize(
    ("signature", "body"),
    [
        ("none", {"instances": [1]}),
        ("tokens", {"instances": [1]}),
        ("tokens", {"instances": [1, "a"]}),
        ("tokens", {"inputs": []}),  # no rows: not batched
    ],
)
def test_what_is_not_batched_over_rest(rest, client, signature, body):
    found, alone = ask(rest, signature, **body), ask(client, signature, **body)
    assert (found.status_code, found.content) == (alone.status_code, alone.content)


def test_time_that_runs_out_over_rest(half_path):
    """Of two batches, the first runs and the second waits for the thread."""
    gate, running = threading.Event(), threading.Event()

    def wrap(servable):
        run = servable.run

        def slow(*arguments, **options):
            running.set()
            gate.wait(60)
            return run(*arguments, **options)

        servable.run = slow
        return batcher(servable)

    with (
        Batcher(BatchingParameters(num_batch_threads=1)) as batcher,
        running_server(half_path, model_name="zoo", wrap=wrap, timeout_s=0.5) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(ask, client, "", instances=[1.0])
        assert running.wait(60)
        second = ask(client, "", instances=[1.0])
        gate.set()
        assert second.status_code == 429
        assert "while waiting in batching queue" in second.json()["error"]
        assert first.result(60).status_code == 504
        assert first.result().json() == {"error": "Timed out while the batch was being run"}


# ------------------------------------------------------------------------------------- what is run


def test_requests_that_wait_are_one_batch_in_their_order(servable, batch):
    held = Held(servable, batch(max_batch_size=8))
    sent = [held.send("", floats(i)) for i in range(1, 6)]
    held.release()
    assert servable.sizes() == [5]
    assert servable.runs[0][1]["x"].tolist() == [1, 2, 3, 4, 5]
    assert [future.result()["y"].tolist() for future in sent] == [[2], [4], [6], [8], [10]]


def test_a_batch_is_filled_with_the_last_requests_first_row(servable, batch):
    held = Held(servable, batch(max_batch_size=8, allowed_batch_sizes=(1, 8)))
    held.send("", floats(1, 2))
    last = held.send("", floats(3, 4))
    held.release()
    assert servable.runs[0][1]["x"].tolist() == [1, 2, 3, 4, 3, 3, 3, 3]
    assert last.result()["row"].tolist() == [3, 4]


def test_a_request_that_does_not_fit_begins_a_batch(servable, batch):
    held = Held(servable, batch(max_batch_size=4))
    for size in (3, 2, 2, 4, 1):
        held.send("", floats(*[1] * size))
    held.release()
    assert servable.sizes() == [3, 4, 4, 1]


def test_large_requests_are_split_over_batches(servable, batch):
    batched = batch(
        max_batch_size=20, enable_large_batch_splitting=True, max_execution_batch_size=4
    )
    held = Held(servable, batched)
    held.send("", floats(1, 2, 3))
    large = held.send("", floats(*range(10, 21)))
    held.release()
    assert servable.sizes() == [4, 4, 4, 2]
    assert large.result()["row"].tolist() == list(range(10, 21))
    error = failure(batched, "", floats(*range(21)))
    assert error.message == "Task size 21 is larger than maximum input batch size 20"


def test_signatures_and_choices_do_not_mix(servable, batch):
    held = Held(servable, batch(max_batch_size=8))
    held.send("", floats(1))
    held.send("", floats(2), outputs=["y"])
    held.send("texts", {"a": texts(b"a"), "b": texts(b"b")})
    held.send("serving_default", floats(3))
    held.release()
    assert sorted(servable.sizes()) == [1, 1, 2]


def test_a_lone_request_waits_no_longer_than_the_timeout_and_a_full_batch_not_at_all(
    servable, batch
):
    batched = batch(max_batch_size=2, batch_timeout_micros=3_600_000_000)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(batched.run, "", floats(1))
        while not batched._queues or not waiting(*batched._queues.values()):
            time.sleep(0.001)
        assert not servable.runs
        batched.run("", floats(2))
        future.result(30)
    assert servable.sizes() == [2]


def test_one_request_is_handed_on_without_a_copy(servable, batch):
    inputs = floats(1, 2)
    seen = []
    run = servable.run
    servable.run = lambda signature, inputs, **options: (
        seen.append(inputs["x"]) or run(signature, inputs, **options)
    )
    batch().run("", inputs)
    assert np.shares_memory(seen[0], inputs["x"])


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([[1, 2, 3]], [[4]], [[1, 2, 3], [4, 4, 4]]),
        ([[5]], [[6, 7], [8, 9]], [[5, 5], [6, 7], [8, 9]]),
        ([[[1], [2]]], [[[3, 4]]], [[[1, 1], [2, 1]], [[3, 4], [3, 3]]]),
    ],
)
def test_variable_lengths_are_filled_with_the_first_element(
    servable, batch, first, second, expected
):
    held = Held(servable, batch(max_batch_size=8, pad_variable_length_inputs=True))
    for value in (first, second):
        held.send("", {"x": np.array(value, np.float32)})
    held.release()
    assert servable.runs[0][1]["x"].tolist() == expected


# ----------------------------------------------------------------------------------------- errors


def failure(servable, *arguments, **options):
    with pytest.raises(ServingError) as caught:
        servable.run(*arguments, **options)
    return caught.value


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"x": np.float32(1)}, "must have at least one dimension"),
        ({"x": np.ones(9, np.float32)}, "Task size 9 is larger than maximum input batch size 8"),
    ],
)
def test_requests_that_cannot_be_batched(servable, batch, inputs, text):
    error = failure(batch(max_batch_size=8), "", inputs)
    assert error.code == Code.INVALID_ARGUMENT
    assert text in error.message
    assert not servable.runs


def test_inputs_have_equal_rows(batch):
    inputs = {"a": texts(b"1", b"2"), "b": texts(b"1")}
    error = failure(batch(), "texts", inputs)
    assert (error.code, error.message) == (
        Code.INVALID_ARGUMENT,
        "Batching Run() input tensors must have equal 0th-dimension size",
    )


@pytest.mark.parametrize(
    ("signature", "inputs", "code"),
    [
        ("nothing", {}, Code.FAILED_PRECONDITION),
        ("tokens", {}, Code.INVALID_ARGUMENT),
        ("tokens", {"txt": texts(b"a")}, Code.INVALID_ARGUMENT),
        ("tokens", {"text": np.ones(1, np.float32)}, Code.INVALID_ARGUMENT),
        ("tokens", {"text": tf.make_tensor_proto([1.5])}, Code.INVALID_ARGUMENT),
    ],
)
def test_what_does_not_fit_the_signature_fails_alone_and_as_without_batches(
    base_path, signature, inputs, code
):
    servable = load(base_path / "00000123")
    with Batcher(BatchingParameters(batch_timeout_micros=20_000)) as batcher:
        batched = batcher(servable)
        with ThreadPoolExecutor(1) as pool:
            good = pool.submit(batched.run, "tokens", {"text": texts(b"one two")})
            error = failure(batched, signature, inputs)
            assert good.result(60)["count"].tolist() == [2]
    alone = failure(servable, signature, inputs)
    assert (error.code, error.message) == (alone.code, alone.message)
    assert error.code == code


def test_a_damaged_proto_fails_alone(base_path):
    proto = tf.make_tensor_proto([1.5, 2.5])
    proto.tensor_content = b"123"
    with Batcher(BatchingParameters()) as batcher:
        batched = batcher(load(base_path / "00000123"))
        error = failure(batched, "", {"x": proto})
    assert error.code == Code.INVALID_ARGUMENT
    assert error.message == "tensor parsing error: x"


def test_no_rows_are_run_apart(base_path):
    with Batcher(BatchingParameters(max_batch_size=4, allowed_batch_sizes=(4,))) as batcher:
        answer = batcher(load(base_path / "00000123")).run("tokens", {"text": texts()})
    assert answer["count"].shape == (0,)


def test_a_failing_row_fails_its_batch_and_no_other(servable, batch):
    held = Held(servable, batch(max_batch_size=3))
    inside = [held.send("", floats(i)) for i in (1, 666, 2)]
    outside = [held.send("", floats(i)) for i in (3, 4)]
    held.release()
    for future in inside:
        assert future.exception().message == "assertion failed: 666"
        assert future.exception().code == Code.INVALID_ARGUMENT
    assert len({id(future.exception()) for future in inside}) == 3
    assert [future.result()["row"].tolist() for future in outside] == [[3], [4]]


def test_one_failing_part_fails_a_split_request(servable, batch):
    batched = batch(max_batch_size=9, enable_large_batch_splitting=True, max_execution_batch_size=2)
    assert failure(batched, "", floats(1, 2, 3, 666, 5)).message == "assertion failed: 666"


def test_different_shapes_fail_their_batch(servable, batch):
    held = Held(servable, batch(max_batch_size=8))
    sent = [held.send("", floats([1, 2])), held.send("", floats([3]))]
    held.release()
    for future in sent:
        assert future.exception().code == Code.FAILED_PRECONDITION
        assert MESSAGE_OF_MIXED_SHAPES in future.exception().message
    assert servable.runs == []


@pytest.mark.parametrize("shape", [(1,), (1, 3), (1, 2, 1), (1, 0)])
def test_other_shapes_than_declared_are_run_alone(servable, batch, shape):
    held = Held(servable, batch(max_batch_size=8))
    declared = servable.signatures["serving_default"].inputs["x"].tensor_shape
    declared.CopyFrom(tf.TensorShape([None, 2]).as_proto())
    first = held.send("", floats([1, 2]))
    other = held.start("", {"x": np.full(shape, 666, np.float32)})  # no queue has it
    second = held.send("", floats([3, 4]))
    held.release()
    assert [future.result()["row"].tolist() for future in (first, second)] == [[3], [7]]
    if np.prod(shape):
        assert other.exception().message == "assertion failed: 666"
    assert sorted(servable.sizes()) == [1, 2]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.25, "Batched output tensor has 0 dimensions"),
        (0.75, "Batched output tensor's 0th dimension does not equal the sum"),
    ],
)
def test_outputs_have_the_batch_as_first_dimension(batch, value, text):
    error = failure(batch(), "", floats(value))
    assert error.code == Code.FAILED_PRECONDITION
    assert text in error.message


def test_a_rank_or_an_emptiness_that_is_not_filled(servable, batch):
    batched = batch(pad_variable_length_inputs=True)
    error = failure(batched, "", {"x": np.ones((1,) * 7, np.float32)})
    assert error.message == "Only tensors with rank from 1 to 6 can be padded."
    held = Held(servable, batched)
    futures = [held.send("", {"x": np.ones((1, width), np.float32)}) for width in (2, 0)]
    held.release()
    for future in futures:
        assert "Got empty tensor in batch of non-empty" in future.exception().message


def test_a_full_queue_refuses(servable, batch):
    held = Held(servable, batch(max_batch_size=2, max_enqueued_batches=2))
    kept = [held.send("", floats(i)) for i in range(1, 5)]
    refused = held.send("", floats(5))
    assert refused.exception(10).code == Code.UNAVAILABLE
    assert "currently 2 batches enqueued and max_enqueued_batches is 2" in (
        refused.exception().message
    )
    held.release()
    assert [future.result()["row"].tolist() for future in kept] == [[1], [2], [3], [4]]


def test_a_full_queue_refuses_what_would_be_split(servable, batch):
    batched = batch(
        max_batch_size=9, max_enqueued_batches=2, max_execution_batch_size=2,
        enable_large_batch_splitting=True,
    )  # fmt: skip
    held = Held(servable, batched)
    held.send("", floats(1))
    refused = held.send("", floats(1, 2, 3, 4))
    assert "task size is 4 but scheduling capacity is only 3" in refused.exception(10).message
    held.send("", floats(1, 2, 3))
    held.release()
    assert servable.sizes() == [2, 2]


def test_time_that_runs_out_in_the_queue(servable, batch):
    held = Held(servable, batch(max_batch_size=8))
    late = held.send("", floats(1), timeout_ms=30)
    patient = held.send("", floats(2), timeout_ms=60_000)
    assert late.exception(30).code == Code.RESOURCE_EXHAUSTED
    assert late.exception().message == "Run() timeout exceeded while waiting in batching queue"
    held.release()
    assert patient.result()["row"].tolist() == [2]
    assert servable.runs[0][1]["x"].tolist() == [2]
    assert 50_000 < servable.runs[0][2] <= 60_000


def test_a_batch_has_as_long_as_its_most_patient_request(servable, batch):
    held = Held(servable, batch(max_batch_size=8))
    for timeout_ms in (40_000, 90_000):
        held.send("", floats(1), timeout_ms=timeout_ms)
    held.release()
    assert 80_000 < servable.runs[0][2] <= 90_000


def test_time_that_runs_out_while_the_batch_runs(servable, batch):
    servable.gate.clear()
    error = failure(batch(), "", floats(1), timeout_ms=50)
    assert error.code == Code.DEADLINE_EXCEEDED


def test_a_closed_batcher_runs_what_waits_and_refuses_the_rest(servable):
    batcher = Batcher(BatchingParameters(num_batch_threads=2, batch_timeout_micros=10**12))
    batched = batcher(servable)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(batched.run, "", floats(1))
        while not batched._queues or not waiting(*batched._queues.values()):
            time.sleep(0.001)
        batcher.close()
        assert future.result(30)["row"].tolist() == [1]
    assert failure(batched, "", floats(1)).code == Code.UNAVAILABLE


def test_a_model_that_is_dropped_is_freed(batch):
    batcher = Batcher(BatchingParameters(num_batch_threads=2))
    servable = Recorder()
    batched = batcher(servable)
    batched.run("", floats(1))
    gone = weakref.ref(servable)
    del servable, batched
    # A worker may still be on its way back to waiting.
    for _ in range(100):
        gc.collect()
        if gone() is None:
            break
        time.sleep(0.005)
    assert gone() is None
    batcher.close()


def test_outputs_that_there_are_not_go_to_the_servable_and_make_no_queue(servable, batch):
    batched = batch()
    for outputs in (["z"], ["y", "y"]):
        with pytest.raises(KeyError):
            batched.run("", floats(1), outputs=outputs)
    assert not batched._queues


def test_signatures_run_together_are_not_batched(servable, batch):
    servable.run_together = lambda *arguments, **options: (arguments, options)
    given = batch().run_together(["a"], {"x": 1}, timeout_ms=5)
    assert given == ((["a"], {"x": 1}), {"timeout_ms": 5})


# ----------------------------------------------------------------------------------- the file


def written(tmp_path, text):
    path = tmp_path / "batching.config"
    path.write_text(text, "utf-8")
    return path


def test_a_parameters_file(tmp_path):
    text = """
        max_batch_size { value: 128 }  # rows
        batch_timeout_micros { value: 0 }
        max_enqueued_batches: { value: 1000000 };
        num_batch_threads < value: 8 >
        thread_pool_name { value: "m" }
        allowed_batch_sizes: 32
        allowed_batch_sizes: [64, 128]
        pad_variable_length_inputs: true
        enable_large_batch_splitting { value: true }
        max_execution_batch_size { value: 64 }
    """
    assert read_parameters(written(tmp_path, text)) == BatchingParameters(
        max_batch_size=128,
        batch_timeout_micros=0,
        max_enqueued_batches=1_000_000,
        num_batch_threads=8,
        thread_pool_name="m",
        allowed_batch_sizes=(32, 64, 128),
        pad_variable_length_inputs=True,
        enable_large_batch_splitting=True,
        max_execution_batch_size=64,
    )
    defaults = read_parameters(written(tmp_path, ""))
    assert defaults == BatchingParameters()
    assert (defaults.max_batch_size, defaults.max_enqueued_batches) == (1000, 10)


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("\n\n  max_batch: 4", ["3:3", 'no field named "max_batch"']),
        ("num_batch_threads { value: 1 }\nmax_batch_size: 5", ["2:17", "max_batch_size: 5"]),
        ("max_batch_size { value: many }", ["1:25", "max_batch_size", "integer: many"]),
        ("allowed_batch_sizes: 1.5", ["1:22", "allowed_batch_sizes", "1.5"]),
        ("max_batch_size { value: 0 }", ["max_batch_size must be positive; was 0"]),
        ("num_batch_threads { value: -1 }", ["num_batch_threads must be positive; was -1"]),
        ("max_enqueued_batches { value: 0 }", ["max_enqueued_batches must be positive"]),
        ("batch_timeout_micros { value: -1 }", ["batch_timeout_micros must be non-negative"]),
        ("allowed_batch_sizes: [4, 2]", ["monotonically increasing; were [4, 2]"]),
        ("allowed_batch_sizes: 8", ["must match max_batch_size; last entry was 8; expected 1000"]),
        (
            "max_batch_size { value: 4 } enable_large_batch_splitting { value: true }\n"
            "max_execution_batch_size { value: 8 }",
            ["4 is less than 8"],
        ),
    ],
)
def test_mistakes_in_a_parameters_file(tmp_path, text, messages):
    path = written(tmp_path, text)
    with pytest.raises(ServingError) as caught:
        read_parameters(path)
    assert caught.value.code == Code.INVALID_ARGUMENT
    for message in [*messages, str(path)]:
        assert message in caught.value.message


def test_a_missing_or_unreadable_parameters_file(tmp_path):
    with pytest.raises(ServingError) as caught:
        read_parameters(tmp_path / "none")
    assert caught.value.code == Code.NOT_FOUND
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ServingError, match=r"Error parsing .* 'utf-8' codec"):
        read_parameters(path)
