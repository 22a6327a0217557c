"""What is measured, and in which order; nothing here imports a library that computes."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from tools.bench.cpu import engines, prepare, training, workloads
from tools.bench.cpu.engines import (
    INT8,
    KERASHUB,
    ONNX,
    ONNX_INT8,
    OPENVINO,
    OTHER,
    OURS,
    PADDED,
    TORCH,
    Spec,
)
from tools.bench.cpu.results import Measured, Results, agreeing
from tools.bench.cpu.turns import Turns, Worker, line_through, ratios, spread
from tools.bench.cpu.workloads import ANSWER, CLASSIFY, EMBED, TAG, Shape, Workload

TOLERANCE = 1e-3
_AGREE = 0.98  # of rows, for near ties between spans
_START, _PREPARE, _MEASURE = 120, 300, 120  # seconds after which a process counts as stuck
_COMMON = {
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TOKENIZERS_PARALLELISM": "false",
}
BASE, LAYERS = f"{EMBED}-base", (1, 3, 12)
SECTIONS = ("classify", "embed", "tag", "answer", "growth", "two-cores", "training")


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is measured.

    Fields:
        rounds: the number of rounds, for classification; others have ``fewer``.
        rows: the number of rows of SST-2 in a measurement, by batch size.
        mixed: the same of texts of mixed lengths.
        seconds: after which a measurement takes no further batch.
        steps: the training steps in a measurement, the first of which is not counted.
        thorough: whether all engines, batch sizes and tasks are measured, and layers and BERT-base.
        sections: what is measured where nothing else is asked for, of ``SECTIONS``.
    """

    rounds: int
    fewer: int
    rows: dict[int, int]
    mixed: dict[int, int]
    seconds: float
    steps: int
    thorough: bool
    sections: tuple[str, ...]


QUICK = Plan(
    1,
    1,
    {1: 24, 8: 48, 32: 64, 128: 128},
    {32: 32},
    2.0,
    3,
    False,
    (CLASSIFY, "growth", "two-cores", "training"),
)
FULL = Plan(
    3,
    2,
    {1: 48, 8: 96, 32: 128, 128: 256},
    {1: 32, 8: 32, 32: 64, 128: 128},
    4.0,
    6,
    True,
    SECTIONS,
)


class Bench:
    """Prepares, measures and remembers.

    Args:
        folder: for models; those that are there are used.
        plan: how much is measured.
        core: the number of the processor core of everything that has one; others follow it.
        baseline: another checkout of this project, or None.
        wanted: sections, of ``SECTIONS``; None for the plan's.
        only: engines, by name; None for all.
    """

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        core: int = 0,
        baseline: str | None = None,
        wanted: tuple[str, ...] | None = None,
        only: tuple[str, ...] | None = None,
    ):
        self.folder, self.plan, self.wanted = folder, plan, wanted or plan.sections
        self.cores = sorted(os.sched_getaffinity(0))
        self.core = core if core in self.cores else self.cores[0]
        asked = [x for x in engines.specs(baseline) if only is None or x.name in only]
        self.specs = [spec for spec in asked if not spec.lacks]
        self.results: Results
        self._failures = {spec.name: spec.lacks for spec in asked if spec.lacks}

    # Preparing ---------------------------------------------------------------------------------

    def prepare(self, model: str) -> None:
        """Writes the models that the wanted sections need, two processes at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        done = self.folder / "checkpoints"
        if not done.exists():
            self._in_processes({"checkpoints": (prepare.Ours, "checkpoints", (model,), "")})
            if "checkpoints" in self._failures:
                raise SystemExit("There are no checkpoints to measure.")
            done.touch()
        checkpoint = self.folder / CLASSIFY / "checkpoint"
        positions = json.loads((checkpoint / "config.json").read_bytes())["max_position_embeddings"]
        if positions < workloads.LENGTH:
            raise SystemExit(
                f"{model} has {positions} positions, expected {workloads.LENGTH} or more."
            )
        self.results = Results(
            Shape.of(checkpoint), workloads.counter(checkpoint), failures=self._failures
        )
        jobs: dict[str, tuple] = {}
        for spec in self.specs:
            for kind in self._kinds(spec):
                target = self.folder / kind / spec.variant
                if spec.make == "Ours" and not target.exists():
                    name = f"{kind}, {spec.variant}"
                    jobs[name] = prepare.Ours, "export", (kind, spec.variant), spec.first_on_path
                variant = "float32" if spec.make == "OpenVino" else spec.variant
                file = target.with_name(f"{variant}.onnx")
                if spec.make in ("Onnx", "OpenVino") and not file.exists():
                    jobs[f"{kind}, ONNX"] = prepare.Peers, "onnx", (kind,), ""
        self._in_processes(jobs)

    def _kinds(self, spec: Spec) -> Iterator[str]:
        """The kinds of models that an engine needs for what is wanted."""
        other = {"growth", "two-cores"} & {*self.wanted}
        for kind in spec.kinds:
            if kind == ANSWER and spec.variant == "padded" and not self.plan.thorough:
                continue
            if kind in self.wanted or (kind == CLASSIFY and other):
                yield kind
        if spec.name == OURS and "growth" in self.wanted and self.plan.thorough:
            yield from (BASE, *(f"{EMBED}-{layers}" for layers in LAYERS))

    def _in_processes(self, jobs: dict[str, tuple]) -> None:
        """Runs jobs in processes that are ended after each, as many at once as there are cores."""
        waiting, running = list(jobs.items()), []
        with (
            Turns({}) as turns,
            tqdm(total=len(jobs), desc="preparing", disable=not jobs) as progress,
        ):
            while waiting or running:
                while waiting and len(running) < len(self.cores):
                    name, (make, method, args, path) = waiting.pop(0)
                    worker = Worker(make, self.folder, environment=_COMMON, first_on_path=path)
                    turns.workers[name] = worker
                    running.append(name)
                    worker.begin(method, *args)
                name = running.pop(0)
                progress.set_postfix_str(name)
                turns.collect(name, limit=_PREPARE)
                if name in turns.workers:
                    turns.workers.pop(name).close()
                progress.update()
            self._failures |= turns.failures

    # Measuring ---------------------------------------------------------------------------------

    def run(self) -> Results:
        """Measures the wanted sections."""
        if {CLASSIFY, EMBED, TAG, ANSWER, "growth"} & {*self.wanted}:
            self._one_core()
        if "two-cores" in self.wanted:
            self._two_cores()
        if "training" in self.wanted:
            self._train()
        return self.results

    def _host(self, spec: Spec, cores: list[int], threads: int, **more: str) -> Worker:
        environment = {**_COMMON, **_threads_of(threads), **more, **spec.environment}
        return Worker(
            engines.Host,
            *(self.folder, spec.make, spec.variant, threads),
            cores=cores,
            environment=environment,
            first_on_path=spec.first_on_path,
        )

    def _ready(self, spec: Spec, kind: str) -> bool:
        """Whether what an engine reads was written."""
        reads = {"Onnx": "ONNX", "OpenVino": "ONNX"}.get(spec.make, spec.variant)
        return f"{kind}, {reads}" not in self._failures

    def _one_core(self) -> None:
        specs = {
            spec.name: spec
            for spec in self.specs
            if any(self._ready(spec, kind) for kind in self._kinds(spec))
        }
        # Nobody is measured while they start, so they may use all cores.
        hosts = {
            name: self._host(spec, self.cores, 1, TF_NUM_INTEROP_THREADS="1")
            for name, spec in specs.items()
        }
        able = {
            kind: [
                name
                for name, spec in specs.items()
                if kind in set(self._kinds(spec)) and self._ready(spec, kind)
            ]
            for kind in (CLASSIFY, EMBED, TAG, ANSWER)
        }
        with Turns(hosts) as turns:
            lists = self._workloads()
            # Models are loaded before anything is measured, so that each finds its memory alone.
            for kind, measured in lists.items():
                probe = measured[0][0].first(64 if kind != ANSWER else 8)
                loaded = turns.together("load", kind, probe.longest, limit=_START, only=able[kind])
                if kind == CLASSIFY:
                    self._memory(turns, loaded, able[kind])
                self._agree(turns, probe, able[kind])
            turns.together("pin", [self.core], limit=_START)
            self._rates(turns)
            for kind, measured in lists.items():
                if kind in self.wanted:
                    for workload, sizes in measured:
                        self._table(turns, workload, sizes, able[kind])
            if "growth" in self.wanted:
                self._growth(turns)
            self._rates(turns)
            self._failures |= turns.failures

    def _workloads(self) -> dict[str, list[tuple[Workload, dict[int, int]]]]:
        """By kind, texts and the numbers of rows at each batch size; what is wanted alone."""
        plan = self.plan
        some = {size: plan.rows[size] for size in plan.rows if size in (8, 32, 128)}
        if not plan.thorough:
            some = {32: plan.rows[32]}
        ordered = workloads.by_length(workloads.sst2().first(128))
        small = {size: plan.rows[size] for size in (plan.rows if plan.thorough else (1, 32))}
        lists = {
            CLASSIFY: [
                (workloads.sst2(), plan.rows),
                (workloads.short(self.results.length_of), {1: plan.rows[1]}),
                (ordered, {size: len(ordered.rows) for size in some}),
                (workloads.mix(), plan.mixed),
            ],
            EMBED: [(workloads.sst2(EMBED), small), (workloads.mix(EMBED), {32: 32})],
            TAG: [(workloads.conll(), {size: plan.rows[size] for size in (1, 32)})],
            ANSWER: [(workloads.long_contexts(), {8: 24 if plan.thorough else 8})],
        }
        needed = {*self.wanted} | ({CLASSIFY} if "growth" in self.wanted else set())
        return {kind: measured for kind, measured in lists.items() if kind in needed}

    def _memory(self, turns: Turns, loaded: dict[str, float], names: list[str]) -> None:
        for name, megabytes in loaded.items():
            self.results.memory[name] = {"loaded": megabytes}
        for workload, size in ((workloads.sst2(), 32), (workloads.mix(), 32)):
            asked = workload.first(size)
            able = self._quick_enough(workload, size, names)
            for name, most in turns.together(
                "peak", asked, size, limit=_MEASURE, only=able
            ).items():
                self.results.memory[name][workload.name] = most

    def _quick_enough(self, workload: Workload, size: int, names: list[str]) -> list[str]:
        """Without who pads all texts to one length, where that takes many times as long."""
        if workload.longest < workloads.LENGTH and (self.plan.thorough or size == 32):
            return names
        return [name for name in names if name != KERASHUB]

    def _agree(self, turns: Turns, probe: Workload, names: list[str]) -> None:
        """Leaves out engines that answer otherwise, which are no peers."""
        found = turns.together("answers", probe, 8, limit=_MEASURE, only=names)
        if OURS not in found:
            return
        for name, answers in found.items():
            spec = next(each for each in self.specs if each.name == name)
            try:
                share, most = agreeing(answers, found[OURS], TOLERANCE)
            except ValueError as error:
                turns.drop(name, str(error))
                continue
            self.results.agreement[probe.kind, name] = share, most
            if spec.exact and share < _AGREE:
                turns.drop(name, f"{1 - share:.0%} of its answers ({probe.kind}) differ from ours")

    def _rates(self, turns: Turns) -> None:
        names = [name for name in (OURS, OTHER, TORCH) if name in turns.workers]
        found = turns.rounds(self.plan.fewer, "product_rates", limit=_MEASURE, only=names)
        for rounds in found.values():
            for each in rounds:
                for library, rate in each.items():
                    self.results.rates.setdefault(library, []).append(rate)

    def _table(
        self, turns: Turns, workload: Workload, sizes: dict[int, int], names: list[str]
    ) -> None:
        plan = self.plan
        able = {size: self._quick_enough(workload, size, names) for size in sizes}
        rounds = plan.rounds if workload.name == workloads.sst2().name else plan.fewer
        total = sum(name in turns.workers for some in able.values() for name in some) * rounds
        with tqdm(total=total, desc=workload.name) as progress:
            for size, count in sizes.items():
                asked = workload.first(count)
                found = turns.rounds(
                    rounds,
                    *("time", asked, size, plan.seconds),
                    limit=_MEASURE + 20 * plan.seconds,
                    only=able[size],
                    progress=progress,
                )
                section = self.results.tables.setdefault(workload.kind, [])
                section.append(Measured(asked, size, found))

    def _seconds(
        self, turns: Turns, points: list[tuple[int, Workload, int]], names: list[str], what: str
    ) -> None:
        """Seconds of whole workloads: points of a size, rows and the number of rows in a batch."""
        into = self.results.growth.setdefault(what, {})
        present = [name for name in names if name in turns.workers]
        with tqdm(total=len(points) * len(present) * self.plan.fewer, desc=what) as progress:
            for at, workload, size in points:
                found = turns.rounds(
                    self.plan.fewer,
                    *("time", workload, size, 60.0),
                    limit=_MEASURE,
                    only=present,
                    progress=progress,
                )
                for name, rounds in found.items():
                    took = spread(each["cpu"] for each in rounds).median
                    into.setdefault(name, []).append((at, took))

    def _growth(self, turns: Turns) -> None:
        names, plan = [OURS, PADDED, ONNX], self.plan
        count = self.results.length_of
        mixed = workloads.mix()
        sizes = (1, 2, 4, 8, 16, 32, 48) if plan.thorough else (2, 8, 16, 32)
        points = []
        for size in sizes:
            rows = mixed.rows[64 : 64 + size]
            points.append((sum(count(rows)), mixed._replace(rows=rows, name=f"{size} mixed"), size))
        self._seconds(turns, points, names, "real tokens, mixed rows")
        for name, found in self.results.growth["real tokens, mixed rows"].items():
            self.results.fit[name] = line_through(*zip(*found, strict=True))
        # The same number of tokens in rows that are all alike; rounded up, never in our favour.
        rows = mixed.rows[:32]
        same = workloads.equal(-(-sum(count(rows)) // 32), 32)
        two = {
            each.name: turns.rounds(
                max(2, plan.rounds), "time", each, 32, 60.0, limit=_MEASURE, only=names
            )
            for each in (mixed._replace(rows=rows, name="32 mixed rows"), same)
        }
        first, second = two.values()
        for name in first.keys() & second.keys():
            seconds = [[each["cpu"] for each in found[name]] for found in (first, second)]
            self.results.equal[name] = ratios(*seconds)
        total = 2048 if plan.thorough else 1024
        lengths = (16, 32, 64, 128, 256, 512) if plan.thorough else (16, 64, 256)
        points = [(n, workloads.equal(n, total // n), total // n) for n in lengths]
        self._seconds(turns, points, names, f"length of rows, {total} tokens in all")
        counts = (1, 2, 4, 8, 16, 32, 64, 128) if plan.thorough else (1, 8, 32)
        points = [(n, workloads.equal(32, n), n) for n in counts]
        self._seconds(turns, points, names, "rows of 32 tokens")
        if plan.thorough and OURS in turns.workers:
            ours = next(each for each in self.specs if each.name == OURS)
            kinds = {n: f"{EMBED}-{n}" for n in LAYERS if self._ready(ours, f"{EMBED}-{n}")}
            points = [(n, workloads.equal(32, 32, kind), 32) for n, kind in kinds.items()]
            self._seconds(turns, points, [OURS], "layers, 32 rows of 32 tokens")
            if self._ready(ours, BASE):
                self._base(turns)

    def _base(self, turns: Turns) -> None:
        rows = workloads.equal(128, 32, BASE)
        found = turns.rounds(2, "time", rows, 32, 60.0, limit=2 * _MEASURE, only=[OURS])
        if OURS in found:
            shape = Shape(12, 768, 3072)
            work = shape.operations([128] * 32)
            self.results.base = spread(work / each["cpu"] for each in found[OURS])

    def _two_cores(self) -> None:
        if len(self.cores) < 2:
            self._failures["two cores"] = "this process may use one alone"
            return
        others = [core for core in self.cores if core != self.core][:1]
        chosen = [
            (spec, threads)
            for spec in self.specs
            for threads in (1, 2)
            if spec.name in (OURS, INT8, ONNX, ONNX_INT8, OPENVINO, TORCH)
            # Two have both ways of sharing the cores.
            and (threads == 2 or spec.name in (OURS, ONNX))
        ]
        names = {_threads(spec.name, threads): (spec, threads) for spec, threads in chosen}
        hosts = {
            name: self._host(spec, [self.core, *others], threads)
            for name, (spec, threads) in names.items()
        }
        plan = self.plan
        with Turns(hosts) as turns:
            turns.together("load", CLASSIFY, 128, limit=_START)
            workload = workloads.sst2()
            sizes = plan.rows if plan.thorough else {32: plan.rows[32]}
            section = self.results.tables.setdefault("two-cores", [])
            with tqdm(total=len(hosts) * len(sizes) * plan.fewer, desc="two cores") as progress:
                for size, count in sizes.items():
                    asked = workload.first(count)
                    found = turns.rounds(
                        plan.fewer,
                        *("time", asked, size, plan.seconds),
                        limit=_MEASURE,
                        progress=progress,
                    )
                    section.append(Measured(asked, size, found, "wall"))
            self._failures |= turns.failures

    def _train(self) -> None:
        environment = {**_COMMON, **_threads_of(1), "TF_NUM_INTEROP_THREADS": "1"}
        allowed = {each.name for each in self.specs}
        trainers = {
            name: Worker(
                training.trainer,
                *(self.folder, make, 1),
                cores=self.cores,
                environment=environment,
            )
            for name, (make, _) in training.TRAINERS.items()
            # XLA compiles its step for half a minute.
            if name in allowed and (self.plan.thorough or name != KERASHUB)
        }
        tasks = training.TASKS if self.plan.thorough else training.TASKS[:1]
        with Turns(trainers, prefix="training, ") as turns:
            for task in tasks:
                masked = task.startswith("mlm")
                names = [n for n in trainers if training.TRAINERS[n][1] or not masked]
                # KerasHub pads to one length, whatever is in a batch.
                names = [n for n in names if n != KERASHUB or task == tasks[0]]
                kind = task.partition(", ")[0]
                turns.together("build", kind, [self.core], limit=_START, only=names)
                steps = max(2, self.plan.steps // 2) if masked else self.plan.steps
                total = len([n for n in names if n in turns.workers]) * (1 + self.plan.fewer)
                with tqdm(total=total, desc=task) as progress:
                    first = turns.rounds(
                        1, "warm_up", task, 2, limit=_PREPARE, only=names, progress=progress
                    )
                    if task == tasks[0]:
                        self.results.first = {name: rounds[0] for name, rounds in first.items()}
                    self.results.training[task] = turns.rounds(
                        self.plan.fewer,
                        *("steps", task, steps),
                        limit=_PREPARE,
                        only=names,
                        progress=progress,
                    )
            self._failures |= turns.failures


def _threads_of(threads: int) -> dict[str, str]:
    """Settings of libraries that otherwise count the cores."""
    return {"OMP_NUM_THREADS": str(threads), "TF_NUM_INTRAOP_THREADS": str(threads)}


def _threads(name: str, threads: int) -> str:
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"
